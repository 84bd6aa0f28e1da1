//! One step: memory over time, by kind.
//!
//! Areas are the prediction, stacked by kind, each action as high as its peak; the line over them is the measurement.
//! The strip above shows which pass was running; for a run on several ranks, a second strip shows the all-reduces.

use plotters::{
    element::{Circle, EmptyElement, PathElement, Polygon, Rectangle, Text},
    series::{DashedLineSeries, LineSeries},
    style::{
        Color, RGBColor,
        text_anchor::{HPos, Pos, VPos},
    },
};
use rekindle_plan::{Bytes, Parts, Seconds};
use rekindle_train::{
    record::RunRecord,
    timeline::{Pass, TimedAction, Timeline},
};

use super::{
    axis::Unit,
    chart::{self, Axis, Drawn, Hint, Picture, Plot},
    columns::{Column, columns, steps},
    theme,
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
    ("fixed and input", theme::FIXED, |parts| parts.fixed),
    ("kept activations", theme::BOUNDARIES, |parts| {
        parts.activations
    }),
    ("live segment", theme::LIVE_SEGMENT, |parts| parts.graphs),
    ("gradients", theme::GRADIENTS, |parts| parts.gradients),
    ("parameter gradients", theme::PARAMETER_GRADIENTS, |parts| {
        parts.parameter_gradients
    }),
    ("temporary", theme::TEMPORARY, |parts| parts.temporary),
];

const PASSES: [(Pass, &str, RGBColor); 7] = [
    (Pass::Forward, "forward", theme::FORWARD),
    (Pass::Recompute, "recompute", theme::RECOMPUTE),
    (Pass::Loss, "loss", theme::LOSS),
    (Pass::Backward, "backward", theme::BACKWARD),
    (Pass::Optimizer, "optimizer", theme::OPTIMIZER),
    (Pass::Offload, "offload", theme::OFFLOAD),
    (Pass::Fetch, "fetch", theme::FETCH),
];

/// All-reduces of gradients.
const EXCHANGE: RGBColor = theme::PARAMETER_GRADIENTS;

/// The name of a pass.
pub fn pass_name(pass: Pass) -> &'static str {
    let found = PASSES.iter().find(|(of, ..)| *of == pass);
    found.map_or("", |(_, name, _)| name)
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
    let near = |budget: &Bytes| (budget.0 as f64) < held.0 as f64 * FAR_BUDGET;
    let budget = super::comparable_budget(record).filter(near);
    let top = held.max(budget.unwrap_or_default());
    let drawing = Drawing {
        record,
        timeline,
        highest,
        columns,
        budget,
        time: Unit::of_seconds(timeline.duration()),
        memory: Unit::of_bytes(top),
        top: Unit::of_bytes(top).bytes(top),
    };
    Some(drawing.paint())
}

struct Drawing<'a> {
    record: &'a RunRecord,
    timeline: &'a Timeline,
    highest: &'a TimedAction,
    columns: Vec<Column<'a>>,
    /// The budget, where it is near enough to be shown.
    budget: Option<Bytes>,
    time: Unit,
    memory: Unit,
    /// The highest value, in that unit.
    top: f64,
}

impl Drawing<'_> {
    fn paint(&self) -> Drawn<String> {
        let name = match self.record.name.as_str() {
            "" => String::new(),
            name => format!(" of {name}"),
        };
        let picture = Picture {
            title: format!("Memory during step {}{name}", self.timeline.step),
            x: Axis::time(self.time, self.timeline.duration()),
            y: Axis {
                range: 0.0..self.top * TOP,
                title: format!("memory in use ({})", self.memory.name),
            },
            notes: self.notes(),
        };
        picture.paint(|plot| {
            self.passes(plot)?;
            self.exchanges(plot)?;
            self.areas(plot)?;
            self.lines(plot)?;
            self.peak(plot)?;
            Ok(self.hints())
        })
    }

    fn end(&self) -> f64 {
        self.time.seconds(self.timeline.duration())
    }

    /// A line through all columns.
    fn line(&self, height: impl Fn(&Column<'_>) -> Bytes) -> Vec<(f64, f64)> {
        let corners = steps(&self.columns, |column| self.memory.bytes(height(column)));
        corners
            .into_iter()
            .map(|(x, y)| (x * self.end(), y))
            .collect()
    }

    /// The two corners of a block of a strip.
    fn block(&self, strip: usize, from: f64, to: f64) -> [(f64, f64); 2] {
        let height = STRIPS[strip] * self.top;
        [(from, height), (to, height + STRIP * self.top)]
    }

    /// Runs of neighbouring columns, each with its first column and where it begins and ends.
    fn runs<'a>(
        &'a self,
        alike: impl Fn(&Column<'_>, &Column<'_>) -> bool + 'a,
    ) -> impl Iterator<Item = (&'a Column<'a>, f64, f64)> + 'a {
        let each = self.end() / self.columns.len() as f64;
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
            let blocks =
                runs.map(|(_, from, to)| Rectangle::new(self.block(0, from, to), colour.filled()));
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
        let place = |seconds: Seconds| self.time.seconds(seconds).min(self.end());
        let blocks = exchanges.iter().map(|one| {
            let (from, to) = (place(one.start_s), place(one.start_s + one.duration_s));
            Rectangle::new(self.block(1, from, to), EXCHANGE.filled())
        });
        plot.chart.draw_series(blocks)?;
        plot.entry(
            format!("exchange {seconds}, {bytes}"),
            chart::area(EXCHANGE),
        )?;
        Ok(())
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
            outline.extend([(self.end(), 0.0), (0.0, 0.0)]);
            plot.chart
                .draw_series([Polygon::new(outline, colour.filled())])?;
            plot.entry(
                format!("{name} {}", of(&self.highest.predicted_at_peak)),
                chart::area(colour),
            )?;
        }
        Ok(())
    }

    /// The budget, what the pools had reserved, and what was measured.
    fn lines(&self, plot: &mut Plot<'_, '_>) -> Drawn<()> {
        if let Some(budget) = self.budget {
            let height = self.memory.bytes(budget);
            let line = [(0.0, height), (self.end(), height)];
            plot.chart
                .draw_series(DashedLineSeries::new(line, 7, 5, theme::TEXT.into()))?;
            plot.entry(format!("budget {budget}"), chart::dashes(theme::TEXT))?;
        }
        if self.pools() {
            let line = self.line(|column| column.reserved.unwrap_or_default());
            plot.chart.draw_series(LineSeries::new(line, theme::SOFT))?;
            plot.entry("reserved by the pools", chart::line(theme::SOFT, 1))?;
        }
        let measured = self.line(|column| column.measured);
        // Paper around the line, so that it is seen on every colour.
        plot.chart.draw_series(LineSeries::new(
            measured.clone(),
            theme::PAPER.stroke_width(4),
        ))?;
        plot.chart
            .draw_series(LineSeries::new(measured, theme::TEXT.stroke_width(2)))?;
        plot.entry("measured", chart::line(theme::TEXT, 2))?;
        Ok(())
    }

    /// The predicted peak, with both numbers.
    fn peak(&self, plot: &mut Plot<'_, '_>) -> Drawn<()> {
        let peak = self.highest.predicted_at_peak.total();
        let highest = |column: &Column<'_>| column.highest.predicted_at_peak.total() == peak;
        let column = self.columns.iter().position(highest).unwrap_or_default();
        let place = (column as f64 + 0.5) / self.columns.len() as f64;
        let point = (place * self.end(), self.memory.bytes(peak));
        let above = (point.0, LABEL * self.top);
        let side = if place < 0.5 { HPos::Left } else { HPos::Right };
        let style = theme::text(theme::TEXT).pos(Pos::new(side, VPos::Bottom));
        let text = format!(
            "predicted peak {peak}, measured {}",
            self.timeline.measured_peak()
        );
        plot.chart
            .draw_series([PathElement::new([point, above], theme::SOFT)])?;
        plot.chart.draw_series([EmptyElement::at(point)
            + Circle::new((0, 0), 5, theme::PAPER.filled())
            + Circle::new((0, 0), 3, theme::TEXT.filled())])?;
        plot.chart.draw_series([Text::new(text, above, style)])?;
        Ok(())
    }

    /// What each action held, over all columns in which it is the highest.
    fn hints(&self) -> Vec<Hint> {
        let runs = self.runs(|a, b| std::ptr::eq(a.highest, b.highest));
        let hint = |(column, from, to): (&Column<'_>, f64, f64)| {
            let action = column.highest;
            Hint {
                corners: [(from, 0.0), (to, self.top * TOP)],
                text: format!(
                    "{}: predicted {}, measured {}, {}",
                    super::what_runs(self.record, action),
                    action.predicted_at_peak.total(),
                    action.measured_peak_bytes,
                    action.duration_s,
                ),
            }
        };
        runs.map(hint).collect()
    }

    fn pools(&self) -> bool {
        self.columns.iter().any(|column| column.reserved.is_some())
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!(
            "Strip: the pass that runs, and its time in the step. Areas: the prediction; the legend has its bytes at the peak, in {}.",
            super::what_runs(self.record, self.highest),
        )];
        match (self.budget, self.record.budget_bytes) {
            (None, Some(budget)) => {
                notes.push(format!("The budget of {budget} is above the plot."))
            }
            (Some(_), _) => notes.extend(super::budget_note(self.record).map(str::to_owned)),
            (None, None) => {}
        }
        if self.pools() {
            notes.push("Memory in use is read between actions.".into());
        }
        notes
    }
}
