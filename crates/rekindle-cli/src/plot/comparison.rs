//! One step each of several runs, on one pair of axes: what was measured as a wide line, what was predicted as dashes
//! on it.

use plotters::{element::PathElement, style::Color};
use rekindle_plan::{Bytes, Seconds};
use rekindle_train::record::RunRecord;

use super::{
    axis::Unit,
    canvas::{self, Drawn},
    columns::{Column, columns, steps},
    frame::{Axis, BELOW, GAP, MARGIN, frame},
    legend::{Entry, Legend, Mark},
    theme::{self, Ink, Size},
};

const PLOT: i32 = 330;
/// Pixels of a dash and of the gap after it.
const DASH: usize = 7;
const DASH_GAP: usize = 5;

/// The timelines of runs with these names. Runs without one are left out; `None` where none is left.
pub fn picture(runs: &[(String, &RunRecord)], size: Size) -> Option<Drawn<String>> {
    let pixels = size.width() as usize;
    let lines: Vec<Line> = runs
        .iter()
        .zip(theme::RUNS.into_iter().cycle())
        .filter_map(|((name, record), ink)| {
            let timeline = record.timeline.as_ref()?;
            Some(Line {
                name,
                ink,
                duration: timeline.duration(),
                predicted: timeline.predicted_peak()?.predicted_at_peak.total(),
                measured: timeline.measured_peak(),
                columns: columns(timeline, pixels),
            })
        })
        .collect();
    (!lines.is_empty()).then(|| paint(&lines, size))
}

struct Line<'a> {
    name: &'a str,
    ink: Ink,
    duration: Seconds,
    predicted: Bytes,
    measured: Bytes,
    columns: Vec<Column>,
}

fn paint(lines: &[Line<'_>], size: Size) -> Drawn<String> {
    let width = size.width();
    let inner = width - 2 * MARGIN as u32;
    let highest = lines.iter().map(|line| line.predicted.max(line.measured));
    let highest = highest.max().unwrap_or_default();
    let longest = lines.iter().map(|line| line.duration.0).fold(0.0, f64::max);
    let (time, memory) = (Unit::of_seconds(Seconds(longest)), Unit::of_bytes(highest));
    let x = Axis {
        range: 0.0..time.seconds(Seconds(longest)),
        title: format!("time since the step began ({})", time.name),
    };
    let y = Axis {
        range: 0.0..memory.bytes(highest) * 1.08,
        title: format!("memory in use ({})", memory.name),
    };
    let mut legend: Vec<Vec<Entry>> = lines
        .iter()
        .map(|line| {
            let peaks = format!(": peak {}, predicted {}", line.measured, line.predicted);
            let rest = inner.saturating_sub(canvas::width_of(&peaks, theme::LETTERS) + 40);
            let name = canvas::fitted(line.name, theme::LETTERS, rest);
            vec![Entry::new(Mark::Line, line.ink, format!("{name}{peaks}"))]
        })
        .collect();
    legend.push(vec![Entry::new(
        Mark::Dashes,
        theme::SOFT,
        "predicted, in each run's colour",
    )]);
    let legend = Legend::new(legend, inner);
    let head = MARGIN + 2 * theme::LINE as i32;
    let bottom = head + PLOT + BELOW + GAP;
    let height = bottom as u32 + legend.height() + MARGIN as u32;
    let title = "Memory during one step of each run";
    canvas::picture((width, height), title, |area| {
        canvas::title(area, title, (MARGIN, MARGIN + theme::LINE as i32 / 2))?;
        let (_, rest) = area.split_vertically(head);
        let (chart, _) = rest.split_vertically(PLOT + BELOW);
        let mut chart = frame(&chart, size, &x, &y)?;
        for line in lines {
            let end = time.seconds(line.duration);
            let predicted = |column: &Column| memory.bytes(column.predicted.total());
            let measured = |column: &Column| memory.bytes(column.measured);
            // Wide and pale, so that the prediction is seen on it.
            let corners = steps(&line.columns, measured);
            let corners: Vec<_> = corners.into_iter().map(|(x, y)| (x * end, y)).collect();
            let pale = line.ink.light().mix(0.55).stroke_width(5);
            chart.draw_series([PathElement::new(corners, pale)])?;
            // The gaps follow the columns, so that a dash has the same length everywhere.
            let thin = line.ink.light().stroke_width(1);
            let count = line.columns.len();
            let dashes = (0..count).step_by(DASH + DASH_GAP).map(|first| {
                let last = (first + DASH).min(count);
                let corners = steps(&line.columns[first..last], predicted);
                let place = |x: f64| (first as f64 + x * (last - first) as f64) / count as f64;
                let corners = corners.into_iter().map(|(x, y)| (place(x) * end, y));
                PathElement::new(corners.collect::<Vec<_>>(), thin)
            });
            chart.draw_series(dashes)?;
        }
        legend.paint(area, (MARGIN, bottom))
    })
}
