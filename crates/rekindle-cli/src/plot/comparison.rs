//! One step each of several runs on one pair of axes: measurements as a wide line, predictions as dashes on it.

use plotters::{
    series::{DashedLineSeries, LineSeries},
    style::Color,
};
use rekindle_plan::{Bytes, Seconds};
use rekindle_train::{record::RunRecord, timeline::Timeline};

use super::{
    axis::Unit,
    chart::{self, Axis, Drawn, Picture},
    columns::{Column, columns, steps},
    theme,
};

/// Letters of a run's name in the legend.
const NAME: usize = 16;

/// The timelines of runs with these names. Runs without one are left out; `None` where none is left.
pub fn picture(runs: &[(String, &RunRecord)]) -> Option<Drawn<String>> {
    let runs: Vec<(&str, &Timeline)> = runs
        .iter()
        .filter_map(|(name, record)| Some((name.as_str(), record.timeline.as_ref()?)))
        .collect();
    (!runs.is_empty()).then(|| paint(&runs))
}

fn predicted_peak(timeline: &Timeline) -> Bytes {
    let highest = timeline.predicted_peak();
    highest.map_or(Bytes::ZERO, |highest| highest.predicted_at_peak.total())
}

fn paint(runs: &[(&str, &Timeline)]) -> Drawn<String> {
    let timelines = || runs.iter().map(|(_, timeline)| timeline);
    let most = |timeline: &&Timeline| predicted_peak(timeline).max(timeline.measured_peak());
    let highest = timelines().map(most).max().unwrap_or_default();
    let longest = timelines().map(|timeline| timeline.duration().0);
    let longest = Seconds(longest.fold(0.0, f64::max));
    let (time, memory) = (Unit::of_seconds(longest), Unit::of_bytes(highest));
    let picture = Picture {
        title: "Memory during one step of each run".into(),
        x: Axis::time(time, longest),
        y: Axis {
            range: 0.0..memory.bytes(highest) * 1.08,
            title: format!("memory in use ({})", memory.name),
        },
        notes: Vec::new(),
    };
    picture.paint(|plot| {
        for ((name, timeline), colour) in runs.iter().zip(theme::RUNS.into_iter().cycle()) {
            let columns = columns(timeline, theme::PLOT as usize);
            let end = time.seconds(timeline.duration());
            let line = |height: &dyn Fn(&Column<'_>) -> Bytes| {
                let corners = steps(&columns, |column| memory.bytes(height(column)));
                corners.into_iter().map(move |(x, y)| (x * end, y))
            };
            // Wide and pale, so that the prediction is seen on it.
            let pale = colour.mix(0.55);
            let measured = line(&|column| column.measured);
            plot.chart
                .draw_series(LineSeries::new(measured, pale.stroke_width(5)))?;
            plot.entry(
                format!(
                    "{}: peak {}",
                    theme::fitted(name, NAME),
                    timeline.measured_peak()
                ),
                move |at| chart::line(colour, 5)(at),
            )?;
            let predicted = line(&|column| column.highest.predicted_at_peak.total());
            plot.chart
                .draw_series(DashedLineSeries::new(predicted, 7, 5, colour.into()))?;
            plot.entry(
                format!("predicted {}", predicted_peak(timeline)),
                chart::dashes(colour),
            )?;
        }
        Ok(Vec::new())
    })
}
