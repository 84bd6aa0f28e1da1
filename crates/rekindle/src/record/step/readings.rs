//! Measures memory and time while a step runs.

use std::time::Instant;

use burn::module::Module;
use rekindle_plan::graph::Span;

use super::state::{Current, Step};
use crate::{
    meter::{Phase, PhaseRecorder},
    quiet,
    record::{
        RecordError,
        output::{Done, Seen, SpanReading},
        planned::phase_of,
    },
    step_result::StepResult,
    tensor_tree::TensorTree,
};

impl<M, I, R, F> Step<M, I, R, F>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
    /// Runs a plan's program, and reads memory and time.
    pub(super) fn read(
        &self,
        current: &Current<R::Auxiliary>,
        run: impl FnOnce(&mut Readings<'_>) -> Result<Done, RecordError>,
    ) -> (Result<Done, RecordError>, Seen) {
        let meter = &*self.planning.meter;
        let mut readings = Readings {
            started: Instant::now(),
            phases: PhaseRecorder::start(meter),
            phase: Phase::Forward,
            watched: self.watched,
            spans: Vec::new(),
        };
        let done = quiet::catch(|| run(&mut readings)).map_err(RecordError::Device);
        // Waits for queued work.
        readings.phases.end(readings.phase);
        let refused = RecordError::of_device(&current.plan.measured.recording, meter);
        let done = done.and_then(|done| refused.map(|()| done));
        self.schedule_comparison(readings.started.elapsed());
        let seen = Seen {
            phases: readings.phases.finish(),
            spans: readings.spans,
            predicted_peak: current.predicted_peak,
            begun: current.begun,
        };
        (done.flatten(), seen)
    }
}

/// Readings of a running step.
pub(super) struct Readings<'a> {
    started: Instant,
    phases: PhaseRecorder<'a>,
    /// The current phase.
    phase: Phase,
    watched: bool,
    spans: Vec<SpanReading>,
}

impl Readings<'_> {
    pub(super) fn begin(&mut self, span: &Span) {
        let phase = phase_of(span.pass, self.phase);
        if phase != self.phase {
            self.phases.end(self.phase);
            self.phase = phase;
        }
    }

    pub(super) fn end(&mut self) {
        if self.watched {
            self.spans.push(SpanReading {
                memory: self.phases.read(),
                done_at: self.started.elapsed(),
            });
        }
    }
}
