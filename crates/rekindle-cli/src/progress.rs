//! Progress of a run on standard error: a bar on a terminal, plain lines elsewhere.

use std::{
    mem,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use rekindle_train::{
    NonFinite,
    device::seal_kernels,
    record::StepRecord,
    session::{Event, MemoryNow, Planned},
    settings::OnNonFinite,
};

use crate::{
    compiling, exit,
    failure::{self, Failure, Outcome},
    stop, summary, terminal,
};

/// A run's message on a signal.
const STOPPING: &str = "stopping after this step";

/// Time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Shows a run's progress.
pub struct Progress {
    steps: usize,
    batch: usize,
    bar: Option<ProgressBar>,
    last_line: Option<Instant>,
    /// Whether a step is done.
    stepped: bool,
    /// Steps that were not finite.
    nonfinite: usize,
    /// Fails if some of the run's folder could not be written last.
    written: Outcome,
}

impl Progress {
    /// For a run of so many steps with so many samples each.
    pub fn new(steps: usize, batch: usize) -> Self {
        Self {
            steps,
            batch,
            bar: terminal::bar(style("{spinner} preparing")),
            last_line: None,
            stepped: false,
            nonfinite: 0,
            written: Ok(()),
        }
    }

    fn note_plan(&self, planned: &Planned) {
        self.line(&summary::plan_line(&planned.summary, planned.parts));
        for note in summary::notes(&planned.summary) {
            self.line(&note);
        }
    }

    /// Whether the last plain line is some seconds old; then the next one is counted from now.
    fn is_due(&mut self) -> bool {
        let due = self
            .last_line
            .is_none_or(|last| last.elapsed() >= LINE_INTERVAL);
        if due {
            self.last_line = Some(Instant::now());
        }
        due
    }

    /// Prints a line without tearing the bar.
    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| note!("{}", terminal::wrapped(text, "  "))),
            None => note!("{text}"),
        }
    }

    /// Shows what happens in the run.
    pub fn tell(&mut self, event: Event<'_>) {
        match event {
            Event::Measuring { done, of } => self.measuring(done, of),
            Event::Planned { planned, step } => self.planned(planned, step),
            Event::Stepped { step, memory, stop } => {
                self.stepped(step, memory);
                *stop = stop::asked();
            }
            Event::Tracked(_) => {}
            Event::Grows(growth) => self.line(&format!(
                "warning: memory grows: {growth}; stop it and `rekindle train --resume RUN_DIR` starts without it"
            )),
            Event::PlannedAgain {
                step,
                shortage,
                before,
                budget,
                planned,
            } => {
                failure::note_step(step);
                self.line(&format!(
                    "warning: {shortage}; re-planned from step {step}: budget {before} -> {budget}"
                ));
                self.note_plan(planned);
            }
            Event::NonFinite(found) => self.nonfinite(found),
            Event::Noticed(text) => self.line(&format!("warning: {text}")),
            Event::WrittenAgain(text) => self.line(text),
            Event::Unwritten(text) => {
                let help = "make room, then `rekindle train --resume RUN_DIR` writes the rest";
                self.written = Err(Failure::coded(exit::FILE_REFUSED, text).help(help));
            }
            Event::Evaluating { done, of, stop } => {
                self.evaluating(done, of);
                *stop = stop::asked();
            }
            Event::Evaluated(evaluation) => self.line(&format!(
                "step {}: evaluation on {} samples: {}",
                evaluation.step,
                evaluation.samples,
                summary::evaluated(evaluation)
            )),
        }
    }

    fn measuring(&self, done: usize, of: usize) {
        if let Some(bar) = &self.bar {
            if done == 0 {
                bar.set_style(style("measuring [{bar:30}] {percent}% of the operations"));
                bar.set_length(of as u64);
            }
            bar.set_position(done as u64);
        }
    }

    fn planned(&mut self, planned: &Planned, step: usize) {
        failure::note_plan(planned, step);
        // Until now nothing could be lost. Where kernels are compiled, the first step may still take long, and nothing is
        // lost before it is done.
        if compiling::count() == 0 {
            stop::in_order(STOPPING);
        } else {
            // A run that is killed later keeps them.
            seal_kernels();
        }
        self.note_plan(planned);
        if let Some(bar) = &self.bar {
            bar.reset();
            bar.set_length(self.steps as u64);
            // Lines that are too wide are cut off, because a wrapped line cannot be erased.
            bar.set_style(style("{pos}/{len} [{bar:12}] {eta} {wide_msg}"));
        }
    }

    fn stepped(&mut self, step: &StepRecord, memory: MemoryNow) {
        failure::note_step(step.step + 1);
        stop::in_order(STOPPING);
        if !mem::replace(&mut self.stepped, true) && compiling::count() > 0 {
            seal_kernels();
            self.line(&compiling::kept());
        }
        let accuracy = step
            .accuracy
            .map(|share| format!(" acc {:.0}%", 100.0 * share))
            .unwrap_or_default();
        let scale = step.loss_scale.map(|scale| format!(" scale {scale}"));
        let scale = scale.unwrap_or_default();
        let message = format!(
            "loss {:.4}{accuracy}{scale} {:.0} samples/s mem {} peak {}",
            step.loss,
            self.batch as f64 / step.step_s.0.max(1e-9),
            memory.counted,
            memory.counted_peak,
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position(step.step as u64);
                bar.set_message(message);
            }
            None => {
                if self.is_due() || step.step == self.steps {
                    self.line(&format!("step {}/{} {message}", step.step, self.steps));
                }
            }
        }
    }

    fn evaluating(&mut self, done: usize, of: usize) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("evaluating, {done} of {of} samples")),
            // Only those that take long.
            None if done == 0 => self.last_line = Some(Instant::now()),
            None => {
                if self.is_due() {
                    self.line(&format!("evaluating: {done} of {of} samples"));
                }
            }
        }
    }

    fn nonfinite(&mut self, found: &NonFinite) {
        self.nonfinite += 1;
        // Each of the first, then ever fewer.
        if self.nonfinite > 3 && !self.nonfinite.is_power_of_two() {
            return;
        }
        let handled = match (found.lower_scale, found.handled) {
            (Some(lower), _) => format!("skipped, and the scale falls to {lower}"),
            (None, OnNonFinite::Skip) => "nothing is updated".into(),
            (None, OnNonFinite::Stop | OnNonFinite::Continue) => "updated anyway".into(),
        };
        let so_far = match self.nonfinite {
            1 => String::new(),
            steps => format!(" ({steps} such steps so far)"),
        };
        self.line(&format!("warning: {found}: {handled}{so_far}"));
    }

    /// Removes the bar. An error lists the files that were not written.
    pub fn finish(self) -> Outcome {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.written
    }
}

/// Shows how long plans take while they are made.
pub fn planning<T>(plan: impl FnOnce() -> T) -> T {
    let bar = terminal::bar(style("{spinner} planning, {elapsed}"));
    let plan = plan();
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    plan
}

/// Falls back to the default style: a broken template would be a bug, but does not stop a run.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}
