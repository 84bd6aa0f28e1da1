//! Measures memory and time while a step runs.

use std::time::Instant;

use burn::module::Module;
use rekindle_plan::graph::Span;

use super::state::{Current, Step};
use crate::{
    meter::{Meter, Phase, PhaseRecorder, halves},
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
    /// Runs a plan's program, and measures memory and time.
    pub(super) fn watched(
        &self,
        current: &Current<R::Auxiliary>,
        watch: Option<&mut dyn FnMut(&Span)>,
        run: impl FnOnce(&mut Readings<'_>) -> Result<Done, RecordError>,
    ) -> (Result<Done, RecordError>, Seen) {
        let started = Instant::now();
        let [phases, spans] = halves(&self.planning.meter);
        // A second reader would make the device wait at every phase.
        let phases: &dyn Meter = match &watch {
            Some(_) => &phases,
            None => &*self.planning.meter,
        };
        let mut readings = Readings {
            phases: PhaseRecorder::start(Some(phases)),
            phase: Phase::Forward,
            watch: watch.map(|tell| Watch {
                tell,
                meter: &spans,
                started,
                spans: Vec::new(),
            }),
        };
        if let Some(watch) = &readings.watch {
            watch.meter.start_interval();
        }
        let done = quiet::catch(|| run(&mut readings)).map_err(RecordError::Device);
        // Waits for queued work.
        readings.phases.end(readings.phase);
        let refused =
            RecordError::of_device(&current.plan.measured.recording, &*self.planning.meter);
        let done = done.and_then(|done| refused.map(|()| done));
        let seen = Seen {
            phases: readings.phases.finish(),
            spans: readings.watch.map_or(Vec::new(), |watch| watch.spans),
            predicted_peak: current.predicted_peak,
            begun: current.begun,
        };
        self.schedule_comparison(started.elapsed());
        (done.flatten(), seen)
    }
}

/// Readings of a running step.
pub(super) struct Readings<'a> {
    phases: PhaseRecorder<'a>,
    /// The current phase.
    phase: Phase,
    watch: Option<Watch<'a>>,
}

struct Watch<'a> {
    tell: &'a mut dyn FnMut(&Span),
    meter: &'a dyn Meter,
    started: Instant,
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

    pub(super) fn end(&mut self, span: &Span) {
        if let Some(watch) = &mut self.watch {
            let memory = watch.meter.read();
            watch.spans.push(SpanReading {
                memory,
                done_at: watch.started.elapsed(),
            });
            (watch.tell)(span);
            watch.meter.start_interval();
        }
    }
}
