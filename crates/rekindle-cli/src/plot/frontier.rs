//! A sweep: memory against time.
//!
//! Each run is a mark at its measured peak and step time; its colour says what kind of run it is. A mark is full where no
//! other run takes less memory without taking more time. Plans are joined in the order of their peaks. The pointer shows
//! every run's numbers.

use plotters::{
    element::{Circle, EmptyElement, Text},
    series::{DashedLineSeries, LineSeries},
    style::{
        Color, RGBColor,
        text_anchor::{HPos, Pos, VPos},
    },
};
use rekindle_plan::{Bytes, Seconds};

use super::{
    axis::{Axis, Unit},
    chart::{self, Drawn, Picture, Plot},
    theme,
};
use crate::sweep::{Point as Asked, SweepRecord, SweepRow};

/// Half a mark's width in pixels.
const RADIUS: i32 = 5;
/// Axes end at so many times the largest value: labels stand there.
const ROOM: f64 = 1.15;
/// A limit so many times the highest peak would only press the marks together.
const FAR_LIMIT: f64 = 1.5;

/// A kind of runs, with its name and its colour.
type Kind = (fn(Asked) -> bool, &'static str, RGBColor);

const KINDS: [Kind; 3] = [
    (|one| one == Asked::Plain, "plain run", theme::TEXT),
    (
        |one| matches!(one, Asked::Segments(_)),
        "equal segments",
        theme::SEGMENTS,
    ),
    (
        |one| matches!(one, Asked::Optimal(_)),
        "plan within a budget",
        theme::PLANS,
    ),
];

/// The frontier of a sweep, if any of its rows ran.
pub fn picture(record: &SweepRecord) -> Option<Drawn<String>> {
    let ran: Vec<(&SweepRow, Bytes, Seconds)> = record
        .rows
        .iter()
        .filter_map(|row| {
            let measured = row.ran.as_ref()?.measured;
            Some((row, measured.peak, measured.step))
        })
        .collect();
    let peaks = ran.iter().map(|(_, peak, _)| *peak);
    let highest = peaks.max()?;
    let slowest = Seconds(ran.iter().map(|(.., step)| step.0).fold(0.0, f64::max));
    let far = highest.0 as f64 * FAR_LIMIT;
    let limit = record.limit_bytes.filter(|limit| limit.0 as f64 <= far);
    let (memory, time) = (Unit::of_bytes(highest), Unit::of_seconds(slowest));
    let points: Vec<Point<'_>> = ran
        .into_iter()
        .map(|(row, peak, step)| Point {
            row,
            at: (memory.bytes(peak), time.seconds(step)),
        })
        .collect();
    let top = time.seconds(slowest) * ROOM;
    let picture = Picture {
        title: format!("Memory against time of {}", record.config),
        x: Axis {
            range: 0.0..memory.bytes(highest.max(limit.unwrap_or_default())) * ROOM,
            title: format!("measured peak ({})", memory.name),
        },
        y: Axis {
            range: 0.0..top,
            title: format!("step time ({})", time.name),
        },
    };
    Some(picture.paint(|plot| {
        if let Some(limit) = limit {
            let line = [0.0, top].map(|time| (memory.bytes(limit), time));
            let dashes = DashedLineSeries::new(line, 7, 5, theme::SOFT.into());
            plot.chart.draw_series(dashes)?;
            plot.entry(format!("limit {limit}"), chart::dashes(theme::SOFT))?;
        }
        marks(&points, plot)?;
        labels(&points, plot)?;
        let hint = |point: &Point<'_>| plot.hint([point.at; 2], RADIUS + 2, point.row.line());
        Ok(points.iter().map(hint).collect())
    }))
}

struct Point<'a> {
    row: &'a SweepRow,
    /// In the units of the axes.
    at: (f64, f64),
}

fn marks(points: &[Point<'_>], plot: &mut Plot<'_, '_>) -> Drawn<()> {
    for (is_of, name, colour) in KINDS {
        let mut points: Vec<_> = points.iter().filter(|one| is_of(one.row.asked)).collect();
        let Some(first) = points.first() else {
            continue;
        };
        if matches!(first.row.asked, Asked::Optimal(_)) {
            points.sort_by(|a, b| a.at.0.total_cmp(&b.at.0));
            let line = points.iter().map(|point| point.at);
            plot.chart.draw_series(LineSeries::new(line, colour))?;
        }
        let mark = |point: &&Point<'_>| {
            let inner = if point.row.pareto {
                colour
            } else {
                theme::PAPER
            };
            EmptyElement::at(point.at)
                + Circle::new((0, 0), RADIUS, colour.filled())
                + Circle::new((0, 0), RADIUS - 2, inner.filled())
        };
        plot.chart.draw_series(points.iter().map(mark))?;
        let entry = move |(x, y): (i32, i32)| Circle::new((x + RADIUS, y), RADIUS, colour.filled());
        plot.entry(name, entry)?;
    }
    let ring =
        |(x, y): (i32, i32)| Circle::new((x + RADIUS, y), RADIUS - 1, theme::SOFT.stroke_width(2));
    plot.entry("hollow: another run beats it", ring)
}

/// Names beside the marks that no other run beats.
fn labels(points: &[Point<'_>], plot: &mut Plot<'_, '_>) -> Drawn<()> {
    let style = theme::text(theme::TEXT).pos(Pos::new(HPos::Left, VPos::Bottom));
    let label = |point: &Point<'_>| {
        let text = Text::new(point.row.name(), (RADIUS, -RADIUS), style.clone());
        EmptyElement::at(point.at) + text
    };
    let best = points.iter().filter(|point| point.row.pareto);
    plot.chart.draw_series(best.map(label))?;
    Ok(())
}
