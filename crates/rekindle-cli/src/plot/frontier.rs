//! A sweep: memory against time.
//!
//! Each run is a mark at its measured peak and step time; its shape and colour say what kind of run it is. A mark is
//! full where no other run takes less memory without taking more time. Plans are joined in the order of their peaks.

use plotters::{
    element::{Circle, EmptyElement, Polygon, Rectangle, Text},
    series::{DashedLineSeries, LineSeries},
    style::{
        Color, RGBColor,
        text_anchor::{HPos, Pos, VPos},
    },
};
use rekindle_plan::{Bytes, Seconds};

use super::{
    axis::Unit,
    chart::{self, Axis, Drawn, Picture, Plot},
    labels::{Frame, HEIGHT, Labels},
    theme,
};
use crate::sweep::{
    SweepRecord, SweepRow,
    record::{RowKind, RowOutcome},
};

/// Half a mark's width in pixels.
const RADIUS: i32 = 5;
/// Axes end at so many times the largest value: labels stand there.
const ROOM: f64 = 1.15;
/// A limit so many times the highest peak would only press the marks together.
const FAR_LIMIT: f64 = 1.5;

/// Kinds of runs, each with its name and its colour.
const KINDS: [(RowKind, &str, RGBColor); 4] = [
    (RowKind::Plain, "plain run", theme::TEXT),
    (
        RowKind::Segments,
        "equal segments, their number",
        theme::RECOMPUTE,
    ),
    (RowKind::Optimal, "plan within a budget", theme::BOUNDARIES),
    (RowKind::Config, "plan of the config", theme::FORWARD),
];

/// The frontier of a sweep, if any of its rows ran.
pub fn picture(record: &SweepRecord) -> Option<Drawn<String>> {
    let points: Vec<Point<'_>> = record.rows.iter().filter_map(Point::of).collect();
    let highest = points.iter().map(|point| point.peak).max()?;
    let slowest = points.iter().map(|point| point.step.0).fold(0.0, f64::max);
    let slowest = Seconds(slowest);
    let far = highest.0 as f64 * FAR_LIMIT;
    let limit = record.limit_bytes.filter(|limit| limit.0 as f64 <= far);
    let drawing = Drawing {
        record,
        points,
        limit,
        memory: Unit::of_bytes(highest),
        time: Unit::of_seconds(slowest),
    };
    Some(drawing.paint(highest.max(limit.unwrap_or_default()), slowest))
}

struct Point<'a> {
    row: &'a SweepRow,
    peak: Bytes,
    step: Seconds,
}

impl<'a> Point<'a> {
    fn of(row: &'a SweepRow) -> Option<Self> {
        Some(Self {
            row,
            peak: row.measured_peak_bytes?,
            step: row.measured_step_s?,
        })
    }

    fn label(&self) -> Option<String> {
        match self.row.kind {
            RowKind::Plain => Some("plain".into()),
            RowKind::Segments => Some(self.row.segments?.to_string()),
            _ => Some(self.row.budget_bytes?.to_string()),
        }
    }
}

struct Drawing<'a> {
    record: &'a SweepRecord,
    points: Vec<Point<'a>>,
    /// The sweep's limit, where it is near enough to be shown.
    limit: Option<Bytes>,
    memory: Unit,
    time: Unit,
}

impl Drawing<'_> {
    fn paint(&self, highest: Bytes, slowest: Seconds) -> Drawn<String> {
        let top = self.time.seconds(slowest) * ROOM;
        let picture = Picture {
            title: format!("Memory against time of {}", self.record.config),
            x: Axis {
                range: 0.0..self.memory.bytes(highest) * ROOM,
                title: format!("measured peak ({})", self.memory.name),
            },
            y: Axis {
                range: 0.0..top,
                title: format!("step time ({})", self.time.name),
            },
            notes: self.notes(),
        };
        picture.paint(|plot| {
            self.limit(plot, top)?;
            let mut plans = self.of_kind(RowKind::Optimal);
            plans.sort_by_key(|point| point.peak);
            let line: Vec<_> = plans.iter().map(|point| self.place(point)).collect();
            plot.chart
                .draw_series(LineSeries::new(line, theme::BOUNDARIES))?;
            self.marks(plot)?;
            self.labels(plot)?;
            Ok(Vec::new())
        })
    }

    fn of_kind(&self, kind: RowKind) -> Vec<&Point<'_>> {
        let points = self.points.iter();
        points.filter(|point| point.row.kind == kind).collect()
    }

    /// Where a point is, in the units of the axes.
    fn place(&self, point: &Point<'_>) -> (f64, f64) {
        (self.memory.bytes(point.peak), self.time.seconds(point.step))
    }

    fn limit(&self, plot: &mut Plot<'_, '_>, top: f64) -> Drawn<()> {
        let Some(limit) = self.limit else {
            return Ok(());
        };
        let memory = self.memory.bytes(limit);
        let line = [(memory, 0.0), (memory, top)];
        plot.chart
            .draw_series(DashedLineSeries::new(line, 7, 5, theme::SOFT.into()))?;
        plot.entry(format!("limit {limit}"), chart::dashes(theme::SOFT))?;
        Ok(())
    }

    fn marks(&self, plot: &mut Plot<'_, '_>) -> Drawn<()> {
        for (kind, name, colour) in KINDS {
            let points = self.of_kind(kind);
            if points.is_empty() {
                continue;
            }
            let marks = points.iter().map(|point| {
                let inner = if point.row.pareto {
                    colour
                } else {
                    theme::PAPER
                };
                EmptyElement::at(self.place(point))
                    + mark(kind, colour, RADIUS, (0, 0))
                    + mark(kind, inner, RADIUS - 2, (0, 0))
            });
            plot.chart.draw_series(marks)?;
            plot.entry(name, move |(x, y)| {
                mark(kind, colour, RADIUS, (x + RADIUS, y))
            })?;
        }
        let chosen = self.points.iter().filter(|point| point.row.chosen);
        let ring = |at| Circle::new(at, RADIUS + 4, theme::FORWARD.stroke_width(2));
        if chosen.clone().count() > 0 {
            plot.chart
                .draw_series(chosen.map(|point| ring(self.place(point))))?;
            plot.entry("chosen by the config", |(x, y)| {
                Circle::new((x + RADIUS, y), 6, theme::FORWARD.stroke_width(2))
            })?;
        }
        Ok(())
    }

    /// Names beside marks, where there is room.
    fn labels(&self, plot: &mut Plot<'_, '_>) -> Drawn<()> {
        let (across, down) = plot.chart.plotting_area().get_pixel_range();
        let pixels = |place| plot.chart.backend_coord(&place);
        let marks = self.points.iter().map(|point| {
            let reach = if point.row.chosen {
                RADIUS + 5
            } else {
                RADIUS + 1
            };
            Frame::about(pixels(self.place(point)), reach)
        });
        let marks: Vec<_> = marks.collect();
        let mut taken = marks.clone();
        taken.extend(self.limit.map(|limit| {
            let (x, _) = pixels((self.memory.bytes(limit), 0.0));
            Frame(x - 1, down.start, x + 1, down.end)
        }));
        let mut labels = Labels {
            inside: Frame(across.start, down.start, across.end, down.end),
            taken,
        };
        let style = theme::text(theme::TEXT).pos(Pos::new(HPos::Left, VPos::Center));
        let mut texts = Vec::new();
        for (point, mark) in self.points.iter().zip(marks) {
            let place = self.place(point);
            let (x, y) = pixels(place);
            if let Some(text) = point.label()
                && let Some((left, middle)) = labels.place(&text, mark)
            {
                let (left, middle) = (left - x, middle - y);
                let right = left + theme::width_of(&text) as i32;
                // The line that joins the plans may run here.
                let paper = Rectangle::new(
                    [(left, middle - HEIGHT / 2), (right, middle + HEIGHT / 2)],
                    theme::PAPER.filled(),
                );
                let text = Text::new(text, (left, middle), style.clone());
                texts.push(EmptyElement::at(place) + paper + text);
            }
        }
        plot.chart.draw_series(texts)?;
        Ok(())
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "Full marks: no other run takes less memory without taking more time. Labels: the number of segments, or the budget.".to_owned(),
        ];
        if let (None, Some(limit)) = (self.limit, self.record.limit_bytes) {
            notes.push(format!("The limit of {limit} is outside the plot."));
        }
        let rows = self.record.rows.iter();
        let hidden = rows.filter(|row| row.outcome != RowOutcome::Done);
        let hidden: Vec<String> = hidden.map(SweepRow::line).collect();
        if !hidden.is_empty() {
            notes.push(format!("Not shown: {}.", hidden.join("; ")));
        }
        notes
    }
}

/// The mark of a kind of runs, so many pixels from its middle to its edge.
fn mark(kind: RowKind, colour: RGBColor, radius: i32, (x, y): (i32, i32)) -> Polygon<(i32, i32)> {
    let (all, half) = (radius, radius / 2);
    let corners = match kind {
        RowKind::Plain => vec![(-all, -all), (all, -all), (all, all), (-all, all)],
        RowKind::Optimal => vec![(0, -all), (all, all), (-all, all)],
        RowKind::Config => vec![(0, -all), (all, 0), (0, all), (-all, 0)],
        // Small enough to look round.
        RowKind::Segments => vec![
            (half, -all),
            (all, -half),
            (all, half),
            (half, all),
            (-half, all),
            (-all, half),
            (-all, -half),
            (-half, -all),
        ],
    };
    let corners = corners.into_iter().map(|(dx, dy)| (x + dx, y + dy));
    Polygon::new(corners.collect::<Vec<_>>(), colour.filled())
}
