//! One step: what was held when, and why.
//!
//! Areas are the prediction, stacked by kind, each action as high as its peak; the line over them is what was measured.
//! The strip above says which pass was under way; a second one, of a run on several ranks, when an all-reduce was.

use plotters::{
    element::{Circle, PathElement, Polygon},
    style::{Color, text_anchor::HPos},
};
use rekindle_plan::{Bytes, Parts, Seconds};
use rekindle_train::{
    record::RunRecord,
    timeline::{Pass, TimedAction, Timeline},
};

use super::{
    axis::Unit,
    canvas::{self, Area, Drawn, Hint},
    columns::{Column, columns, steps},
    frame::{Axis, BELOW, GAP, LEFT, MARGIN, frame},
    legend::{Entry, Legend, Mark},
    theme::{self, Ink, Size},
};

const STRIP: i32 = 14;
/// The plot is this much higher than what it shows: labels stand there.
const HEADROOM: f64 = 1.22;
/// A budget this much higher than what is held would only make everything else small.
const FAR_BUDGET: f64 = 1.6;

/// A kind of bytes.
struct Kind {
    name: &'static str,
    ink: Ink,
    of: fn(&Parts) -> Bytes,
}

const fn kind(name: &'static str, ink: Ink, of: fn(&Parts) -> Bytes) -> Kind {
    Kind { name, ink, of }
}

/// From the bottom of the stack to its top.
const KINDS: [Kind; 6] = [
    kind("fixed and input", theme::FIXED, |parts| {
        parts.fixed + parts.input
    }),
    kind("kept activations", theme::BOUNDARIES, |parts| {
        parts.activations
    }),
    kind("live segment", theme::LIVE_SEGMENT, |parts| parts.graphs),
    kind("gradients", theme::GRADIENTS, |parts| parts.gradients),
    kind("parameter gradients", theme::PARAMETER_GRADIENTS, |parts| {
        parts.parameter_gradients
    }),
    kind("temporary", theme::TEMPORARY, |parts| parts.temporary),
];

const PASSES: [(Pass, &str, Ink); 7] = [
    (Pass::Forward, "forward", theme::FORWARD),
    (Pass::Recompute, "recompute", theme::RECOMPUTE),
    (Pass::Loss, "loss", theme::LOSS),
    (Pass::Backward, "backward", theme::BACKWARD),
    (Pass::Optimizer, "optimizer", theme::OPTIMIZER),
    (Pass::Offload, "offload", theme::OFFLOAD),
    (Pass::Fetch, "fetch", theme::FETCH),
];

/// All-reduces of gradients.
const EXCHANGE: Ink = theme::PARAMETER_GRADIENTS;

/// What an action is there for, in a word.
pub fn pass_name(pass: Pass) -> &'static str {
    of_pass(pass).0
}

/// The timeline of a run, if it has one.
pub fn picture(record: &RunRecord, size: Size) -> Option<Drawn<String>> {
    let timeline = record.timeline.as_ref()?;
    let highest = timeline.predicted_peak()?;
    Some(Picture::new(record, timeline, highest, size).paint())
}

struct Picture<'a> {
    record: &'a RunRecord,
    timeline: &'a Timeline,
    highest: &'a TimedAction,
    size: Size,
    columns: Vec<Column>,
    /// The budget, where it is near enough to be shown.
    budget: Option<Bytes>,
    top: Bytes,
}

impl<'a> Picture<'a> {
    fn new(
        record: &'a RunRecord,
        timeline: &'a Timeline,
        highest: &'a TimedAction,
        size: Size,
    ) -> Self {
        let pixels = size.width() as i32 - 2 * MARGIN - LEFT;
        let columns = columns(timeline, pixels as usize);
        let held = |column: &Column| {
            let measured = column.measured.max(column.reserved.unwrap_or_default());
            measured.max(column.predicted.total())
        };
        let held = columns.iter().map(held).max().unwrap_or_default();
        let near = |budget: &Bytes| (budget.0 as f64) < held.0 as f64 * FAR_BUDGET;
        let budget = super::comparable_budget(record).filter(near);
        Self {
            record,
            timeline,
            highest,
            size,
            columns,
            budget,
            top: held.max(budget.unwrap_or_default()),
        }
    }

    fn paint(&self) -> Drawn<String> {
        let width = self.size.width();
        let inner = width - 2 * MARGIN as u32;
        let legend = Legend::new(self.legend(), inner);
        let plot = match self.size {
            Size::Wide => 330,
            Size::Narrow => 270,
        };
        let head = MARGIN + 2 * theme::LINE as i32;
        let strips = match self.timeline.exchanges.is_empty() {
            true => STRIP,
            false => 2 * STRIP,
        };
        let bottom = head + strips + plot + BELOW + GAP;
        let height = bottom as u32 + legend.height() + MARGIN as u32;
        let letters = theme::TITLE_LETTERS;
        let lead = format!("Memory during step {}", self.timeline.step);
        let name = &self.record.name;
        let title = match name.is_empty() {
            true => lead,
            false => {
                let rest = inner.saturating_sub(canvas::width_of(&lead, letters));
                let path = canvas::fitted(name, letters, rest.saturating_sub(30));
                format!("{lead} of {path}")
            }
        };
        let svg = canvas::picture((width, height), &title, |area| {
            canvas::title(area, &title, (MARGIN, MARGIN + theme::LINE as i32 / 2))?;
            self.strip(area, head)?;
            self.exchanges(area, head + STRIP)?;
            let (_, rest) = area.split_vertically(head + strips);
            let (chart, _) = rest.split_vertically(plot + BELOW);
            self.plot(&chart)?;
            legend.paint(area, (MARGIN, bottom))
        })?;
        Ok(canvas::with_hints(svg, self.hints(head, strips + plot)))
    }

    /// What each action held, over all columns in which it is the highest.
    fn hints(&self, top: i32, height: i32) -> impl Iterator<Item = Hint> {
        let mut left = MARGIN + LEFT;
        let runs = self.columns.chunk_by(|a, b| a.highest == b.highest);
        runs.map(move |run| {
            let width = run.len() as i32;
            let at = (left, top);
            left += width;
            let action = &self.timeline.actions[run[0].highest];
            Hint {
                at,
                size: (width, height),
                text: format!(
                    "{}: predicted {}, measured {}, {}",
                    super::what_runs(self.record, action),
                    action.predicted_at_peak.total(),
                    action.measured_peak_bytes,
                    action.duration_s,
                ),
            }
        })
    }

    /// Which pass was under way.
    fn strip(&self, area: &Area<'_>, top: i32) -> Drawn<()> {
        let left = MARGIN + LEFT;
        let mut start = 0;
        for run in self.columns.chunk_by(|a, b| a.pass == b.pass) {
            let (from, to) = (left + start, left + start + run.len() as i32);
            canvas::rectangle(
                area,
                (from, top),
                (to, top + STRIP - 4),
                of_pass(run[0].pass).1,
            )?;
            start += run.len() as i32;
        }
        Ok(())
    }

    /// When the network was busy.
    fn exchanges(&self, area: &Area<'_>, top: i32) -> Drawn<()> {
        let width = self.columns.len() as f64;
        let total = self.timeline.duration().0;
        let place = |seconds: f64| MARGIN + LEFT + (seconds / total * width).min(width) as i32;
        for one in &self.timeline.exchanges {
            let from = place(one.start_s.0);
            let to = place(one.start_s.0 + one.duration_s.0).max(from + 1);
            canvas::rectangle(area, (from, top), (to, top + STRIP - 4), EXCHANGE)?;
        }
        Ok(())
    }

    fn plot(&self, area: &Area<'_>) -> Drawn<()> {
        let (time, memory) = (self.time_unit(), Unit::of_bytes(self.top));
        let end = time.seconds(self.timeline.duration());
        let top = memory.bytes(self.top) * HEADROOM;
        let x = Axis {
            range: 0.0..end,
            title: format!("time since the step began ({})", time.name),
        };
        let y = Axis {
            range: 0.0..top,
            title: format!("memory in use ({})", memory.name),
        };
        let mut chart = frame(area, self.size, &x, &y)?;
        let line = |height: &dyn Fn(&Column) -> f64| -> Vec<(f64, f64)> {
            let corners = steps(&self.columns, height);
            corners.into_iter().map(|(x, y)| (x * end, y)).collect()
        };
        // From the top of the stack to its bottom, each layer over the one above it.
        for layers in (1..=KINDS.len()).rev() {
            let sum = |column: &Column| {
                let kinds = KINDS[..layers].iter();
                let bytes = kinds.map(|kind| (kind.of)(&column.predicted)).sum();
                memory.bytes(bytes)
            };
            let mut outline = line(&sum);
            outline.push((end, 0.0));
            outline.push((0.0, 0.0));
            let ink = KINDS[layers - 1].ink;
            chart.draw_series([Polygon::new(outline, ink.light())])?;
        }
        if let Some(budget) = self.budget {
            let budget = memory.bytes(budget);
            let dashes = (0..60).map(|k| {
                let from = end * f64::from(k) / 60.0;
                let line = [(from, budget), (from + end / 100.0, budget)];
                PathElement::new(line, theme::TEXT.light().stroke_width(1))
            });
            chart.draw_series(dashes)?;
        }
        if self.columns.iter().any(|column| column.reserved.is_some()) {
            let reserved = |column: &Column| memory.bytes(column.reserved.unwrap_or_default());
            let style = theme::SOFT.light().stroke_width(1);
            chart.draw_series([PathElement::new(line(&reserved), style)])?;
        }
        let measured = line(&|column| memory.bytes(column.measured));
        // Paper around the line, so that it is seen on every colour.
        for (ink, width) in [(theme::PAPER, 4), (theme::TEXT, 2)] {
            let style = ink.light().stroke_width(width);
            chart.draw_series([PathElement::new(measured.clone(), style)])?;
        }

        let peak = self.highest.predicted_at_peak.total();
        let highest = |column: &Column| column.predicted.total() == peak;
        let column = self.columns.iter().position(highest).unwrap_or_default();
        let place = (column as f64 + 0.5) / self.columns.len() as f64;
        let point = (place * end, memory.bytes(peak));
        chart.draw_series([Circle::new(point, 5, theme::PAPER.light().filled())])?;
        chart.draw_series([Circle::new(point, 3, theme::TEXT.light().filled())])?;
        let to_pixels = |point| chart.backend_coord(&point);
        let (base_x, base_y) = area.get_base_pixel();
        let (x, y) = to_pixels(point);
        let (x, y) = (x - base_x, y - base_y);
        let label = format!(
            "predicted peak {peak}, measured {}",
            self.timeline.measured_peak()
        );
        let row = theme::LINE as i32 / 2;
        area.draw(&PathElement::new(
            [(x, row + 8), (x, y - 6)],
            theme::SOFT.light().stroke_width(1),
        ))?;
        self.label(area, &label, (x, row))?;
        if let Some(budget) = self.budget {
            let (_, line) = to_pixels((0.0, memory.bytes(budget)));
            let text = format!("budget {budget}{}", super::budget_remark(self.record));
            let at = (MARGIN + LEFT + 6, line - base_y - 9);
            canvas::text(area, &text, at, theme::TEXT, HPos::Left)?;
        }
        Ok(())
    }

    /// Text about a point, kept inside the plot.
    fn label(&self, area: &Area<'_>, text: &str, (x, y): (i32, i32)) -> Drawn<()> {
        let half = canvas::width_of(text, theme::LETTERS) as i32 / 2;
        let (left, right) = (MARGIN + LEFT + 4, self.size.width() as i32 - MARGIN - 4);
        let middle = x.clamp((left + half).min(right - half), right - half);
        let paper = |to| (middle + to * (half + 3), y + to * 8);
        // A line of the grid may run here.
        canvas::rectangle(area, paper(-1), paper(1), theme::PAPER)?;
        canvas::text(area, text, (middle, y), theme::TEXT, HPos::Center)
    }

    fn legend(&self) -> Vec<Vec<Entry>> {
        let actions = &self.timeline.actions;
        let mut passes = vec![Entry::words("strip:")];
        for (pass, name, ink) in PASSES {
            let of_pass = actions.iter().filter(|action| action.pass == pass);
            let seconds: Seconds = of_pass.clone().map(|action| action.duration_s).sum();
            if of_pass.count() > 0 {
                passes.push(Entry::new(Mark::Area, ink, format!("{name} {seconds}")));
            }
        }
        let exchanges = &self.timeline.exchanges;
        if !exchanges.is_empty() {
            let seconds: Seconds = exchanges.iter().map(|one| one.duration_s).sum();
            let bytes: Bytes = exchanges.iter().map(|one| one.bytes).sum();
            let text = format!("exchange beside them {seconds}, {bytes}");
            passes.push(Entry::new(Mark::Area, EXCHANGE, text));
        }
        let parts = &self.highest.predicted_at_peak;
        let mut kinds = vec![Entry::words(format!(
            "predicted, and what makes the peak of {} in {}:",
            parts.total(),
            super::what_runs(self.record, self.highest),
        ))];
        kinds.extend(KINDS.iter().map(|kind| {
            let text = format!("{} {}", kind.name, (kind.of)(parts));
            Entry::new(Mark::Area, kind.ink, text)
        }));
        let mut lines = vec![Entry::new(Mark::Line, theme::TEXT, "measured")];
        if self.budget.is_some() {
            lines.push(Entry::new(Mark::Dashes, theme::TEXT, "budget"));
        } else if let Some(budget) = self.record.budget_bytes {
            lines.push(Entry::words(format!(
                "the budget of {budget} is above the plot"
            )));
        }
        if self.columns.iter().any(|column| column.reserved.is_some()) {
            lines.push(Entry::new(
                Mark::Line,
                theme::SOFT,
                "reserved by the pools; in use is seen between actions",
            ));
        }
        vec![passes, kinds, lines]
    }

    fn time_unit(&self) -> Unit {
        Unit::of_seconds(self.timeline.duration())
    }
}

fn of_pass(pass: Pass) -> (&'static str, Ink) {
    let found = PASSES.iter().find(|(of, _, _)| *of == pass);
    found.map_or(("", theme::SOFT), |(_, name, ink)| (*name, *ink))
}
