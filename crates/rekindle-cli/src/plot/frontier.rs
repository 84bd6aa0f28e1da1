//! A sweep: what memory buys in time.
//!
//! Each run is a mark at its measured peak and step time; its shape and colour say what kind of run it is. A mark is
//! full where no other run takes less memory without taking more time. Plans are joined in the order of their peaks.

use plotters::{
    element::PathElement,
    style::{Color, text_anchor::HPos},
};
use rekindle_plan::{Bytes, Seconds};

use super::{
    axis::Unit,
    canvas::{self, Area, Drawn},
    frame::{Axis, BELOW, GAP, MARGIN, frame},
    labels::{Frame, Labels},
    legend::{Entry, Legend, Mark},
    shape::Shape,
    theme::{self, Ink, Size},
};
use crate::sweep::{
    SweepRecord, SweepRow,
    record::{RowKind, RowOutcome},
};

/// Half a mark's width in pixels.
const RADIUS: i32 = 5;
/// Room around the outermost marks, as a share of the distance between them: labels stand there.
const ROOM: f64 = 0.12;
/// A limit further from the marks than this share of the distance between them would only press them together.
const FAR_LIMIT: f64 = 0.5;

/// How a kind of run looks, and what it is called.
fn look(kind: RowKind) -> (Shape, Ink, &'static str) {
    match kind {
        RowKind::Plain => (Shape::Square, theme::TEXT, "plain run"),
        RowKind::Uniform => (
            Shape::Disc,
            theme::RECOMPUTE,
            "equal segments, with their number",
        ),
        RowKind::Optimal => (Shape::Triangle, theme::BOUNDARIES, "plan for a budget"),
        // Rows of several ranks are not shown.
        RowKind::Config | RowKind::Ranks => (
            Shape::Diamond,
            theme::FORWARD,
            "plan that the config asks for",
        ),
    }
}

/// The frontier of a sweep, if any of its rows ran.
pub fn picture(record: &SweepRecord, size: Size) -> Option<Drawn<String>> {
    let points: Vec<Point> = record.rows.iter().filter_map(Point::of).collect();
    let first = points.first()?;
    let mut range = Range {
        memory: (first.peak, first.peak),
        time: (first.step, first.step),
    };
    for point in &points {
        range.take(point);
    }
    let picture = Picture {
        record,
        size,
        limit: record.limit_bytes.filter(|&limit| range.is_near(limit)),
        points,
        range,
    };
    Some(picture.paint())
}

struct Point<'a> {
    row: &'a SweepRow,
    peak: Bytes,
    step: Seconds,
}

impl<'a> Point<'a> {
    fn of(row: &'a SweepRow) -> Option<Self> {
        if row.kind == RowKind::Ranks {
            return None;
        }
        Some(Self {
            row,
            peak: row.measured_peak_bytes?,
            step: row.measured_step_s?,
        })
    }

    fn label(&self) -> Option<String> {
        match (self.row.kind, self.row.segments) {
            (RowKind::Plain, _) => Some("plain".into()),
            (RowKind::Uniform, Some(segments)) => Some(segments.to_string()),
            _ => None,
        }
    }
}

/// The least and the most of memory and time.
struct Range {
    memory: (Bytes, Bytes),
    time: (Seconds, Seconds),
}

impl Range {
    fn take(&mut self, point: &Point<'_>) {
        let (least, most) = self.memory;
        self.memory = (least.min(point.peak), most.max(point.peak));
        let (least, most) = self.time;
        self.time = (
            Seconds(least.0.min(point.step.0)),
            Seconds(most.0.max(point.step.0)),
        );
    }

    fn is_near(&self, limit: Bytes) -> bool {
        let (least, most) = self.memory;
        let away = (most.0 - least.0) as f64 * FAR_LIMIT;
        (least.0 as f64 - away..=most.0 as f64 + away).contains(&(limit.0 as f64))
    }
}

/// A little more than from `least` to `most`; something even where they are equal. Not below zero.
fn with_room(least: f64, most: f64) -> std::ops::Range<f64> {
    let room = match most - least {
        distance if distance > 0.0 => distance * ROOM,
        _ => most.abs().max(f64::MIN_POSITIVE) * ROOM,
    };
    (least - room).max(0.0)..most + room
}

/// Points of a line, a few pixels apart.
fn along(line: &[(i32, i32)]) -> impl Iterator<Item = (i32, i32)> {
    const APART: i32 = 4;
    line.windows(2).flat_map(|ends| {
        let ((x, y), (to_x, to_y)) = (ends[0], ends[1]);
        let parts = ((to_x - x).abs().max((to_y - y).abs()) / APART).max(1);
        (0..=parts).map(move |part| (x + (to_x - x) * part / parts, y + (to_y - y) * part / parts))
    })
}

struct Picture<'a> {
    record: &'a SweepRecord,
    size: Size,
    points: Vec<Point<'a>>,
    range: Range,
    /// The sweep's limit, where it is near enough to be shown.
    limit: Option<Bytes>,
}

impl Picture<'_> {
    fn paint(&self) -> Drawn<String> {
        let width = self.size.width();
        let inner = width - 2 * MARGIN as u32;
        let legend = Legend::new(self.legend(), inner);
        let plot = match self.size {
            Size::Wide => 360,
            Size::Narrow => 300,
        };
        let head = MARGIN + 2 * theme::LINE as i32;
        let bottom = head + plot + BELOW + GAP;
        let height = bottom as u32 + legend.height() + MARGIN as u32;
        let letters = theme::TITLE_LETTERS;
        let lead = "Memory against time of ";
        let rest = inner.saturating_sub(canvas::width_of(lead, letters));
        let title = format!(
            "{lead}{}",
            canvas::fitted(&self.record.config, letters, rest)
        );
        canvas::picture((width, height), &title, |area| {
            canvas::title(area, &title, (MARGIN, MARGIN + theme::LINE as i32 / 2))?;
            let (_, rest) = area.split_vertically(head);
            let (chart, _) = rest.split_vertically(plot + BELOW);
            self.plot(&chart)?;
            legend.paint(area, (MARGIN, bottom))
        })
    }

    fn plot(&self, area: &Area<'_>) -> Drawn<()> {
        let memory = Unit::of_bytes(self.range.memory.1);
        let time = Unit::of_seconds(self.range.time.1);
        let limit = self.limit.unwrap_or(self.range.memory.0);
        let (least, most) = self.range.memory;
        let peaks = with_room(
            memory.bytes(least.min(limit)),
            memory.bytes(most.max(limit)),
        );
        let (least, most) = self.range.time;
        let steps = with_room(time.seconds(least), time.seconds(most));
        let chart = frame(
            area,
            self.size,
            &Axis {
                range: peaks,
                title: format!("measured peak ({})", memory.name),
            },
            &Axis {
                range: steps,
                title: format!("step time ({})", time.name),
            },
        )?;

        let (base_x, base_y) = area.get_base_pixel();
        let pixel = |peak: Bytes, step: Seconds| {
            let (x, y) = chart.backend_coord(&(memory.bytes(peak), time.seconds(step)));
            (x - base_x, y - base_y)
        };
        let (right, low) = chart.plotting_area().get_pixel_range();
        let inside = Frame(
            right.start - base_x,
            low.start - base_y,
            right.end - base_x,
            low.end - base_y,
        );
        if let Some(limit) = self.limit {
            let (x, _) = pixel(limit, self.range.time.0);
            let mut y = inside.1;
            while y < inside.3 {
                let dash = [(x, y), (x, (y + 7).min(inside.3))];
                area.draw(&PathElement::new(dash, theme::SOFT.light().stroke_width(1)))?;
                y += 12;
            }
        }
        let mut plans: Vec<&Point<'_>> = self
            .points
            .iter()
            .filter(|point| point.row.kind == RowKind::Optimal)
            .collect();
        plans.sort_by_key(|point| point.peak);
        let line: Vec<(i32, i32)> = plans
            .iter()
            .map(|point| pixel(point.peak, point.step))
            .collect();
        let style = theme::BOUNDARIES.light().stroke_width(1);
        area.draw(&PathElement::new(line.clone(), style))?;

        let mut marks: Vec<Frame> = Vec::new();
        for point in &self.points {
            let at = pixel(point.peak, point.step);
            let (shape, ink, _) = look(point.row.kind);
            shape.paint(area, at, RADIUS, ink, point.row.pareto)?;
            let mut reach = RADIUS;
            if point.row.chosen {
                reach = RADIUS + 4;
                Shape::ring(area, at, reach, theme::FORWARD)?;
            }
            marks.push(Frame::about(at, reach + 1));
        }
        let mut free = marks.clone();
        free.extend(self.limit.map(|limit| {
            let (x, _) = pixel(limit, self.range.time.0);
            Frame(x - 1, inside.1, x + 1, inside.3)
        }));
        free.extend(along(&line).map(|at| Frame::about(at, 2)));
        let mut labels = Labels::new(inside, &free);
        for (point, mark) in self.points.iter().zip(marks) {
            if let Some(text) = point.label()
                && let Some(at) = labels.place(&text, mark)
            {
                canvas::text(area, &text, at, theme::TEXT, HPos::Left)?;
            }
        }
        Ok(())
    }

    fn legend(&self) -> Vec<Vec<Entry>> {
        let mut kinds: Vec<Entry> = Vec::new();
        for kind in [
            RowKind::Plain,
            RowKind::Uniform,
            RowKind::Optimal,
            RowKind::Config,
        ] {
            if self.points.iter().any(|point| point.row.kind == kind) {
                let (shape, ink, name) = look(kind);
                kinds.push(Entry::new(Mark::Point(shape), ink, name));
            }
        }
        let mut marks = vec![Entry::words(
            "full: no other run takes less memory without taking more time",
        )];
        if self.points.iter().any(|point| point.row.chosen) {
            marks.push(Entry::new(
                Mark::Ring,
                theme::FORWARD,
                "what the config asks for",
            ));
        }
        let mut rest = Vec::new();
        match (self.limit, self.record.limit_bytes) {
            (Some(limit), _) => {
                rest.push(Entry::new(
                    Mark::Dashes,
                    theme::SOFT,
                    format!("limit {limit}"),
                ));
            }
            (None, Some(limit)) => rest.push(Entry::words(format!(
                "the limit of {limit} is outside the plot"
            ))),
            (None, None) => {}
        }
        let missing: Vec<String> = self
            .record
            .rows
            .iter()
            .filter(|row| row.outcome != RowOutcome::Done || row.kind == RowKind::Ranks)
            .map(|row| row.line())
            .collect();
        if !missing.is_empty() {
            rest.push(Entry::words(format!("not shown: {}", missing.join("; "))));
        }
        [kinds, marks, rest]
            .into_iter()
            .filter(|group| !group.is_empty())
            .collect()
    }
}
