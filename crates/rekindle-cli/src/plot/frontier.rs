//! A sweep: memory against time.
//!
//! Each run is a mark at its measured peak and step time, with a line for the middle half of its steps; its colour says
//! what kind of run it is. A mark is full, and has its name beside it where there is room, where no other run takes less memory
//! without taking more time. The pointer shows every run's numbers. Axes begin where the data does.

use super::chart::{Axis, BOLD, BYTES, DASHES, PAPER, Picture, SECONDS, SOFT, TEXT};
use super::text::ends;
use crate::sweep::{Point, SweepRecord};

/// A limit above so many times the highest peak would only press the marks together.
const FAR_LIMIT: f64 = 1.2;

/// The kind of a run, and its colour.
fn kind(asked: Point) -> (&'static str, &'static str) {
    match asked {
        Point::Plain => ("plain run", TEXT),
        Point::Segments(_) => ("segments", "#D55E00"),
        Point::Optimal(_) => ("plan within a budget", "#0072B2"),
    }
}

/// From below the least value to above the largest: labels stand there. Values that are nearly the same look so.
fn around(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let [least, most] = ends(values);
    let room = 0.15 * (most - least).max(most / 20.0);
    [(least - room).max(0.0), most + room]
}

/// The frontier of a sweep, if any of its rows ran.
pub fn picture(record: &SweepRecord) -> Option<String> {
    let ran = record.rows.iter();
    let ran = ran.filter_map(|row| Some((row, row.ran.as_ref()?.measured)));
    let highest = ran.clone().map(|(_, measured)| measured.peak).max()?;
    let near = |limit: &rekindle_plan::Bytes| limit.0 as f64 <= FAR_LIMIT * highest.0 as f64;
    let limit = record.limit_bytes.filter(near);
    let peaks = ran.clone().map(|(_, measured)| measured.peak).chain(limit);
    let peaks = around(peaks.map(|peak| peak.0 as f64));
    let times = ran.clone().flat_map(|(_, measured)| {
        let range = measured.range.into_iter().flatten();
        range.chain([measured.step])
    });
    let times = around(times.map(|time| time.0));
    let mut picture = Picture::new(
        &format!("{}: memory against time", record.config),
        Axis::new("measured peak", peaks, BYTES),
        Axis::new("step time", times, SECONDS),
    );
    if let Some(limit) = limit {
        let line = times.map(|time| (limit.0 as f64, time));
        picture.line(&line, SOFT, DASHES, Some(&format!("limit {limit}")));
    }
    for (row, measured) in ran.clone() {
        let (name, colour) = kind(row.asked);
        let peak = measured.peak.0 as f64;
        picture.dot_entry(name, [colour, colour]);
        if let Some(range) = measured.range {
            let name = "middle half of the steps";
            picture.line(&range.map(|time| (peak, time.0)), colour, BOLD, Some(name));
        }
        let inner = if row.pareto { colour } else { PAPER };
        picture.dot((peak, measured.step.0), [inner, colour], &row.line());
    }
    for (row, measured) in ran.filter(|(row, _)| row.pareto) {
        picture.label((measured.peak.0 as f64, measured.step.0), &row.name());
    }
    picture.dot_entry("hollow: another run beats it", [PAPER, SOFT]);
    Some(picture.svg())
}
