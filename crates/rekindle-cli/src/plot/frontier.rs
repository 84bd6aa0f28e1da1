//! A sweep: memory against time.
//!
//! Each run is a mark at its measured peak and step time; its colour says what kind of run it is. A mark is full, and has
//! its name beside it, where no other run takes less memory without taking more time. Plans are joined in the order of their
//! peaks. The pointer shows every run's numbers.

use rekindle_plan::Seconds;

use super::chart::{Axis, PAPER, Picture, Place, SOFT, TEXT};
use crate::sweep::{Point, SweepRecord, SweepRow};

/// Axes end at so many times the largest value: labels stand there.
const ROOM: f64 = 1.15;
/// A limit so many times the highest peak would only press the marks together.
const FAR_LIMIT: f64 = 1.5;

const PLANS: &str = "#0072B2";

/// The kind of a run, and its colour.
fn kind(asked: Point) -> (&'static str, &'static str) {
    match asked {
        Point::Plain => ("plain run", TEXT),
        Point::Segments(_) => ("segments", "#D55E00"),
        Point::Optimal(_) => ("plan within a budget", PLANS),
    }
}

/// The frontier of a sweep, if any of its rows ran.
pub fn picture(record: &SweepRecord) -> Option<String> {
    let measured = |row: &SweepRow| row.ran.as_ref().map(|ran| ran.measured);
    let highest = record.rows.iter().filter_map(measured);
    let highest = highest.map(|measured| measured.peak).max()?;
    let mut marks: Vec<(&SweepRow, Place)> = Vec::new();
    let mut slowest = 0.0;
    for row in &record.rows {
        if let Some(measured) = measured(row) {
            marks.push((row, (measured.peak.0 as f64, measured.step.0)));
            slowest = f64::max(slowest, measured.step.0);
        }
    }
    let far = highest.0 as f64 * FAR_LIMIT;
    let limit = record.limit_bytes.filter(|limit| limit.0 as f64 <= far);
    let mut picture = Picture::new(
        &format!("Memory against time of {}", record.config),
        Axis::of_bytes(
            "measured peak",
            highest.max(limit.unwrap_or_default()),
            ROOM,
        ),
        Axis::of_seconds("step time", Seconds(slowest), ROOM),
    );
    if let Some(limit) = limit {
        let line = [0.0, slowest * ROOM].map(|time| (limit.0 as f64, time));
        picture.dashes(&line, SOFT, &format!("limit {limit}"));
    }
    let planned = |row: &SweepRow| matches!(row.asked, Point::Optimal(_));
    let plans = marks.iter().filter(|(row, _)| planned(row));
    let mut plans: Vec<Place> = plans.map(|(_, place)| *place).collect();
    plans.sort_by(|a, b| a.0.total_cmp(&b.0));
    picture.line(&plans, PLANS, 1, None);
    for &(row, place) in &marks {
        let (name, colour) = kind(row.asked);
        picture.dot_entry(name, [colour, colour]);
        let inner = if row.pareto { colour } else { PAPER };
        picture.dot(place, [inner, colour], &row.line());
        if row.pareto {
            picture.label(place, true, &row.name());
        }
    }
    picture.dot_entry("hollow: another run beats it", [PAPER, SOFT]);
    Some(picture.svg())
}
