//! One step: memory over time, by kind.
//!
//! Areas are the prediction, stacked by kind, each action as high as its peak; the line over them is the measurement.
//! The strip above shows which pass was running; for a run on several ranks, a second strip shows the all-reduces. The
//! legend has each kind's bytes at the predicted peak, and each pass's time.

use plotters::{
    element::{Circle, EmptyElement, PathElement, Polygon, Rectangle, Text},
    series::{DashedLineSeries, LineSeries},
    style::{
        Color, RGBColor,
        text_anchor::{HPos, Pos, VPos},
    },
};
use rekindle_plan::{Action, Bytes, Parts, Seconds};
use rekindle_train::{
    record::RunRecord,
    timeline::{Pass, TimedAction, Timeline},
};

use super::{
    axis::{Axis, Unit},
    chart::{self, Drawn, Hint, Picture, Plot},
    columns::{Column, columns, steps},
    theme::{self, colour},
};

/// Places of the strips, of the peak's label and of the top, as multiples of the highest value.
const STRIPS: [f64; 2] = [1.24, 1.19];
const STRIP: f64 = 0.03;
const LABEL: f64 = 1.11;
const TOP: f64 = 1.28;
/// A budget this many times higher than the peak is not shown, because it would make everything else small.
const FAR_BUDGET: f64 = 1.6;

/// A kind of bytes: its name, its colour, and its part.
type Kind = (&'static str, RGBColor, fn(&Parts) -> Bytes);

/// From the bottom of the stack to its top.
const KINDS: [Kind; 6] = [
    ("fixed and input", colour(0xB9BEC5), |parts| parts.fixed),
    ("kept activations", colour(0x0072B2), |parts| {
        parts.activations
    }),
    ("live segment", colour(0x56B4E9), |parts| parts.graphs),
    ("gradients", colour(0xE69F00), |parts| parts.gradients),
    ("parameter gradients", colour(0xF8D894), |parts| {
        parts.parameter_gradients
    }),
    ("temporary", colour(0xD3EBF9), |parts| parts.temporary),
];

const PASSES: [(Pass, &str, RGBColor); 7] = [
    (Pass::Forward, "forward", colour(0x009E73)),
    (Pass::Recompute, "recompute", colour(0xD55E00)),
    (Pass::Loss, "loss", colour(0xF0E442)),
    (Pass::Backward, "backward", colour(0x994F7F)),
    (Pass::Optimizer, "optimizer", colour(0x3F454C)),
    (Pass::Offload, "offload", colour(0x004D80)),
    (Pass::Fetch, "fetch", colour(0x9AD2F2)),
];

/// All-reduces of gradients.
const EXCHANGE: RGBColor = colour(0xF8D894);

/// The name of a pass.
pub fn pass_name(pass: Pass) -> &'static str {
    let found = PASSES.iter().find(|(of, ..)| *of == pass);
    found.map_or("", |(_, name, _)| name)
}

/// An action by its stage's name.
pub fn what_runs(record: &RunRecord, timed: &TimedAction) -> String {
    let name = |stage: usize| {
        let stage = record.stages.get(stage);
        stage.map_or("a stage", |stage| stage.name.as_str())
    };
    let action = match timed.action {
        Action::Forward(stage) => format!("the forward of {}", name(stage.0)),
        Action::Loss => "the loss".into(),
        Action::Backward(stage) => format!("the backward of {}", name(stage.0)),
        Action::Optimize => "the update".into(),
    };
    match timed.pass {
        Pass::Offload => format!("an offload in {action}"),
        Pass::Fetch => format!("a fetch in {action}"),
        _ => action,
    }
}

/// The timeline of a run, if it has one.
pub fn picture(record: &RunRecord) -> Option<Drawn<String>> {
    let timeline = record.timeline.as_ref()?;
    let highest = timeline.predicted_peak()?;
    let columns = columns(timeline, theme::PLOT as usize);
    let held = |column: &Column<'_>| {
        let measured = column.measured.max(column.reserved.unwrap_or_default());
        measured.max(column.highest.predicted_at_peak.total())
    };
    let held = columns.iter().map(held).max().unwrap_or_default();
    // On a GPU a budget may bound the driver's context and the pools too, which a meter of live buffers does not measure.
    let budget = record.plan.budget;
    let budget = budget.map(|budget| budget - timeline.beside_buffers_bytes);
    let budget = budget.filter(|budget| (budget.0 as f64) < held.0 as f64 * FAR_BUDGET);
    let top = held.max(budget.unwrap_or_default());
    let (time, memory) = (Unit::of_seconds(timeline.duration()), Unit::of_bytes(top));
    let drawing = Drawing {
        record,
        timeline,
        highest,
        columns,
        budget,
        time,
        memory,
        top: memory.bytes(top),
        end: time.seconds(timeline.duration()),
    };
    Some(drawing.paint())
}

struct Drawing<'a> {
    record: &'a RunRecord,
    timeline: &'a Timeline,
    highest: &'a TimedAction,
    columns: Vec<Column<'a>>,
    /// The budget of what is drawn, where it is near enough to be shown.
    budget: Option<Bytes>,
    time: Unit,
    memory: Unit,
    /// The highest value and the end of the step, in these units.
    top: f64,
    end: f64,
}

impl Drawing<'_> {
    fn paint(&self) -> Drawn<String> {
        let picture = Picture {
            title: format!(
                "Memory during step {} of {}",
                self.timeline.step, self.record.name
            ),
            x: Axis {
                range: 0.0..self.end,
                title: format!("time since the step began ({})", self.time.name),
            },
            y: Axis {
                range: 0.0..self.top * TOP,
                title: format!("memory in use ({})", self.memory.name),
            },
        };
        picture.paint(|plot| {
            self.passes(plot)?;
            self.exchanges(plot)?;
            self.areas(plot)?;
            self.lines(plot)?;
            self.peak(plot)?;
            Ok(self.hints(plot))
        })
    }

    /// A line through all columns.
    fn line(&self, height: impl Fn(&Column<'_>) -> Bytes) -> Vec<(f64, f64)> {
        let corners = steps(&self.columns, |column| self.memory.bytes(height(column)));
        let corners = corners.into_iter();
        corners.map(|(x, y)| (x * self.end, y)).collect()
    }

    /// A block of a strip.
    fn block(&self, strip: usize, from: f64, to: f64, colour: RGBColor) -> Rectangle<(f64, f64)> {
        let height = STRIPS[strip] * self.top;
        let corners = [(from, height), (to, height + STRIP * self.top)];
        Rectangle::new(corners, colour.filled())
    }

    /// Runs of neighbouring columns, each with its first column and where it begins and ends.
    fn runs<'a>(
        &'a self,
        alike: impl Fn(&Column<'_>, &Column<'_>) -> bool + 'a,
    ) -> impl Iterator<Item = (&'a Column<'a>, f64, f64)> + 'a {
        let each = self.end / self.columns.len() as f64;
        let mut first = 0.0;
        self.columns
            .chunk_by(move |a, b| alike(a, b))
            .map(move |run| {
                let from = first;
                first += run.len() as f64 * each;
                (&run[0], from, first)
            })
    }

    /// Which pass was running.
    fn passes(&self, plot: &mut Plot<'_, '_>) -> Drawn<()> {
        for (pass, name, colour) in PASSES {
            let actions = self.timeline.actions.iter();
            let of_pass = actions.filter(|action| action.pass == pass);
            let seconds: Seconds = of_pass.clone().map(|action| action.duration_s).sum();
            if of_pass.count() == 0 {
                continue;
            }
            let runs = self.runs(|a, b| a.pass == b.pass);
            let runs = runs.filter(|(column, ..)| column.pass == pass);
            let blocks = runs.map(|(_, from, to)| self.block(0, from, to, colour));
            plot.chart.draw_series(blocks)?;
            plot.entry(format!("{name} {seconds}"), chart::area(colour))?;
        }
        Ok(())
    }

    /// When the network was busy.
    fn exchanges(&self, plot: &mut Plot<'_, '_>) -> Drawn<()> {
        let exchanges = &self.timeline.exchanges;
        if exchanges.is_empty() {
            return Ok(());
        }
        let seconds: Seconds = exchanges.iter().map(|one| one.duration_s).sum();
        let bytes: Bytes = exchanges.iter().map(|one| one.bytes).sum();
        let place = |seconds: Seconds| self.time.seconds(seconds).min(self.end);
        let blocks = exchanges.iter().map(|one| {
            let (from, to) = (place(one.start_s), place(one.start_s + one.duration_s));
            self.block(1, from, to, EXCHANGE)
        });
        plot.chart.draw_series(blocks)?;
        let entry = format!("exchange {seconds}, {bytes}");
        plot.entry(entry, chart::area(EXCHANGE))
    }

    /// The prediction, from the top of the stack to its bottom, each layer over the one above it.
    fn areas(&self, plot: &mut Plot<'_, '_>) -> Drawn<()> {
        for layers in (1..=KINDS.len()).rev() {
            let (name, colour, of) = KINDS[layers - 1];
            let sum = |column: &Column<'_>| {
                let parts = &column.highest.predicted_at_peak;
                KINDS[..layers].iter().map(|(.., of)| of(parts)).sum()
            };
            let mut outline = self.line(sum);
            outline.extend([(self.end, 0.0), (0.0, 0.0)]);
            plot.chart
                .draw_series([Polygon::new(outline, colour.filled())])?;
            let bytes = of(&self.highest.predicted_at_peak);
            plot.entry(format!("{name} {bytes}"), chart::area(colour))?;
        }
        Ok(())
    }

    /// The budget, what the pools had reserved, and what was measured.
    fn lines(&self, plot: &mut Plot<'_, '_>) -> Drawn<()> {
        if let Some(budget) = self.budget {
            let line = [0.0, self.end].map(|x| (x, self.memory.bytes(budget)));
            let dashes = DashedLineSeries::new(line, 7, 5, theme::TEXT.into());
            plot.chart.draw_series(dashes)?;
            let of = match self.timeline.beside_buffers_bytes {
                Bytes::ZERO => "budget",
                _ => "budget for buffers",
            };
            plot.entry(format!("{of} {budget}"), chart::dashes(theme::TEXT))?;
        }
        if self.columns.iter().any(|column| column.reserved.is_some()) {
            let line = self.line(|column| column.reserved.unwrap_or_default());
            plot.chart.draw_series(LineSeries::new(line, theme::SOFT))?;
            plot.entry("reserved by the pools", chart::line(theme::SOFT, 1))?;
        }
        let measured = self.line(|column| column.measured);
        // Paper around the line, so that it is seen on every colour.
        for (colour, width) in [(theme::PAPER, 4), (theme::TEXT, 2)] {
            let line = LineSeries::new(measured.clone(), colour.stroke_width(width));
            plot.chart.draw_series(line)?;
        }
        plot.entry("measured", chart::line(theme::TEXT, 2))
    }

    /// The predicted peak, with both numbers.
    fn peak(&self, plot: &mut Plot<'_, '_>) -> Drawn<()> {
        let peak = self.highest.predicted_at_peak.total();
        let highest = |column: &Column<'_>| column.highest.predicted_at_peak.total() == peak;
        let column = self.columns.iter().position(highest).unwrap_or_default();
        let place = (column as f64 + 0.5) / self.columns.len() as f64;
        let point = (place * self.end, self.memory.bytes(peak));
        let above = (point.0, LABEL * self.top);
        let side = if place < 0.5 { HPos::Left } else { HPos::Right };
        let style = theme::text(theme::TEXT).pos(Pos::new(side, VPos::Bottom));
        let measured = self.timeline.measured_peak();
        let text = format!("predicted peak {peak}, measured {measured}");
        plot.chart
            .draw_series([PathElement::new([point, above], theme::SOFT)])?;
        plot.chart.draw_series([EmptyElement::at(point)
            + Circle::new((0, 0), 5, theme::PAPER.filled())
            + Circle::new((0, 0), 3, theme::TEXT.filled())])?;
        plot.chart.draw_series([Text::new(text, above, style)])?;
        Ok(())
    }

    /// What each action held, over all columns in which it is the highest.
    fn hints(&self, plot: &Plot<'_, '_>) -> Vec<Hint> {
        let hint = |(column, from, to): (&Column<'_>, f64, f64)| {
            let action = column.highest;
            let text = format!(
                "{}: predicted {}, measured {}, {}",
                what_runs(self.record, action),
                action.predicted_at_peak.total(),
                action.measured_peak_bytes,
                action.duration_s,
            );
            plot.hint([(from, 0.0), (to, self.top * TOP)], 0, text)
        };
        let runs = self.runs(|a, b| std::ptr::eq(a.highest, b.highest));
        runs.map(hint).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also for those who see no hues.
    #[test]
    fn neighbours_differ_in_lightness() {
        let kinds = KINDS.map(|(_, colour, _)| colour);
        let passes = PASSES.map(|(.., colour)| colour);
        let [
            forward,
            recompute,
            loss,
            backward,
            optimizer,
            offload,
            fetch,
        ] = passes;
        for [a, b] in [
            [kinds[0], kinds[1]],
            [kinds[1], kinds[2]],
            [kinds[3], kinds[4]],
            [forward, loss],
            [forward, backward],
            [backward, recompute],
            [backward, optimizer],
            [forward, offload],
            [backward, fetch],
            [offload, fetch],
        ] {
            let luminance = theme::tests::luminance;
            let difference = (luminance(a) - luminance(b)).abs();
            assert!(difference > 0.05, "{a:?}, {b:?}: {difference}");
        }
    }
}
