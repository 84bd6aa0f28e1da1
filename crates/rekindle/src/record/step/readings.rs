//! Memory and time, read while a step runs.

use std::time::Instant;

use rekindle_plan::graph::{Span, SpanPass};

use crate::{
    meter::{Meter, Phase, PhaseRecorder},
    record::output::SpanReading,
};

/// What is read while a step runs.
pub(super) struct Readings<'a> {
    pub(super) phases: PhaseRecorder<'a>,
    /// The phase that is under way.
    pub(super) phase: Phase,
    pub(super) watch: Option<Watch<'a>>,
}

pub(super) struct Watch<'a> {
    pub(super) tell: &'a mut dyn FnMut(&Span),
    pub(super) meter: &'a dyn Meter,
    pub(super) started: Instant,
    pub(super) spans: Vec<SpanReading>,
}

impl Readings<'_> {
    pub(super) fn begin(&mut self, span: &Span) {
        let phase = match (span.pass, self.phase) {
            (SpanPass::Forward, phase) => phase,
            // Parts of the loss may run again in the backward.
            (SpanPass::Loss, Phase::Forward) => Phase::Loss,
            (SpanPass::Loss, phase) => phase,
            (SpanPass::Recompute | SpanPass::Backward, _) => Phase::Backward,
        };
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
