//! One step, action by action: predicted and measured memory side by side.
//!
//! Both count the same memory: on the CPU the whole process's live bytes, on a GPU the live buffers in its pools,
//! without the driver's context. On a GPU a meter reads memory only between actions, so measured peaks
//! there do not include temporary memory within an action.

use rekindle_plan::{
    Action, Bytes, Parts, Seconds,
    graph::{Span, SpanPass, Transfer},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use rekindle::record::{
    TimedExchange,
    driver::{SpanReading, StagedPlan, action},
};

/// One traced step. Where a batch runs in parts, its last part and the update.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timeline {
    /// Number of the step, from 1.
    pub step: usize,
    /// Bytes of the driver's context and of the pools' overhead, which no other number here includes; 0 on the CPU.
    pub beside_buffers_bytes: Bytes,
    /// Its actions in order.
    pub actions: Vec<TimedAction>,
    /// What the network did beside these actions, in order; only of a run of several ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<TimedExchange>,
}

/// One action of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimedAction {
    /// The action, as in a plan's `schedule`; of a transfer, the action that it runs in.
    #[schemars(with = "String")]
    pub action: Action,
    /// What the action is there for.
    pub pass: Pass,
    /// When it began, from the start of the step.
    pub start_s: Seconds,
    /// How long it took, reading the meter included.
    pub duration_s: Seconds,
    /// What is predicted to be held at its peak.
    pub predicted_at_peak: Parts,
    /// Bytes predicted to be held after it.
    pub predicted_after_bytes: Bytes,
    /// The most bytes held during it.
    pub measured_peak_bytes: Bytes,
    /// Bytes held after it.
    pub measured_after_bytes: Bytes,
    /// Bytes that the pools had taken from the device after it; `null` on the CPU.
    pub reserved_bytes: Option<Bytes>,
}

/// What an action is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// A stage runs for the first time.
    Forward,
    /// A stage runs again.
    Recompute,
    /// The loss.
    Loss,
    /// A stage's backward.
    Backward,
    /// The update of the parameters.
    Optimizer,
    /// Tensors are copied to the host, within a pass of a stage.
    Offload,
    /// Tensors come back from the host, within a pass of a stage.
    Fetch,
}

impl Pass {
    /// What a span of a program is there for.
    pub(crate) fn of(span: &Span) -> Self {
        match (span.transfer, span.pass) {
            (Some(Transfer::Offload), _) => Self::Offload,
            (Some(Transfer::Fetch), _) => Self::Fetch,
            (None, SpanPass::Forward) => Self::Forward,
            (None, SpanPass::Recompute) => Self::Recompute,
            (None, SpanPass::Loss) => Self::Loss,
            (None, SpanPass::Backward) => Self::Backward,
        }
    }
}

/// What is held at the peak of the update after a plan's spans: what the last span leaves, and the update's own.
pub(crate) fn at_update(plan: &StagedPlan) -> Parts {
    let left = plan.held.last().map(|held| held.after);
    Parts {
        temporary: plan.chain.optimizer.temp_bytes,
        ..left.unwrap_or_default()
    }
}

impl Timeline {
    /// The timeline of a traced step: the spans of a plan, and the update after them. A meter's readings do not include the
    /// driver's context.
    pub(super) fn new(
        step: usize,
        plan: &StagedPlan,
        trace: &[SpanReading],
        exchanges: &[TimedExchange],
    ) -> Self {
        let live = |parts: Parts| Parts {
            fixed: parts.fixed - plan.beside_buffers,
            ..parts
        };
        let spans = plan.spans.iter().zip(&plan.held);
        let spans = spans.map(|(span, held)| {
            let after = live(held.after).total();
            (action(span), Pass::of(span), live(held.at_peak), after)
        });
        let at_update = live(at_update(plan));
        let update = (
            Action::Optimize,
            Pass::Optimizer,
            at_update,
            at_update.fixed,
        );
        let mut start_s = 0.0;
        let actions = spans.chain([update]).zip(trace);
        let actions = actions.map(|((action, pass, at_peak, after), seen)| {
            let done_s = seen.done_at.as_secs_f64();
            let start_s = std::mem::replace(&mut start_s, done_s);
            TimedAction {
                action,
                pass,
                start_s: Seconds(start_s),
                duration_s: Seconds(done_s - start_s),
                predicted_at_peak: at_peak,
                predicted_after_bytes: after,
                measured_peak_bytes: seen.memory.peak_in_use_bytes,
                measured_after_bytes: seen.memory.in_use_bytes,
                reserved_bytes: seen.memory.reserved_bytes,
            }
        });
        Self {
            step,
            beside_buffers_bytes: plan.beside_buffers,
            actions: actions.collect(),
            exchanges: exchanges.to_vec(),
        }
    }

    /// Its time.
    #[must_use]
    pub fn duration(&self) -> Seconds {
        let last = self.actions.last();
        last.map_or(Seconds::ZERO, |last| last.start_s + last.duration_s)
    }

    /// The first action with the highest prediction.
    #[must_use]
    pub fn predicted_peak(&self) -> Option<&TimedAction> {
        let peak = |action: &&TimedAction| action.predicted_at_peak.total();
        // The last of equals is the one that `max_by_key` gives.
        self.actions.iter().rev().max_by_key(peak)
    }

    /// The highest measurement.
    #[must_use]
    pub fn measured_peak(&self) -> Bytes {
        let peaks = self.actions.iter().map(|action| action.measured_peak_bytes);
        peaks.max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rekindle::meter::MemoryReading;
    use rekindle_plan::{Chain, OptimizerCost, StageId, graph::Moment};

    use super::*;

    const BESIDE: u64 = 600;

    fn parts(fixed: u64, activations: u64) -> Parts {
        Parts {
            fixed: Bytes(fixed),
            activations: Bytes(activations),
            ..Parts::default()
        }
    }

    /// A stage that is recomputed, a tensor of which goes to the host and comes back; the loss; an update. Fixed bytes are
    /// 1,000, of which 600 are no live buffer's.
    fn plan() -> StagedPlan {
        let span = |pass, stage, transfer| Span {
            pass,
            stage: StageId(stage),
            transfer,
            steps: 0..1,
        };
        let spans = vec![
            span(SpanPass::Forward, 0, None),
            span(SpanPass::Forward, 0, Some(Transfer::Offload)),
            span(SpanPass::Loss, 1, None),
            span(SpanPass::Recompute, 0, None),
            span(SpanPass::Backward, 0, Some(Transfer::Fetch)),
            span(SpanPass::Backward, 0, None),
        ];
        let held = (1..=spans.len() as u64).map(|place| Moment {
            at_peak: parts(1_000, 20 * place),
            after: parts(1_000, 10 * place),
        });
        StagedPlan {
            chain: Chain {
                optimizer: OptimizerCost {
                    temp_bytes: Bytes(7),
                    ..OptimizerCost::default()
                },
                ..Chain::default()
            },
            marks: vec![None],
            held: held.collect(),
            spans,
            beside_buffers: Bytes(BESIDE),
            order: None,
        }
    }

    fn timeline() -> Timeline {
        let readings = (1..=7).map(|place| SpanReading {
            memory: MemoryReading {
                in_use_bytes: Bytes(400 + 10 * place),
                peak_in_use_bytes: Bytes(400 + 20 * place),
                ..MemoryReading::default()
            },
            done_at: Duration::from_secs(place * place),
        });
        Timeline::new(4, &plan(), &readings.collect::<Vec<_>>(), &[])
    }

    #[test]
    fn passes_are_those_of_the_plan_and_the_update_comes_last() {
        let actions = timeline().actions;
        let passes: Vec<_> = actions.iter().map(|action| action.pass).collect();
        use Pass::{Backward, Fetch, Forward, Loss, Offload, Optimizer, Recompute};
        let expected = [
            Forward, Offload, Loss, Recompute, Fetch, Backward, Optimizer,
        ];
        assert_eq!(passes, expected);
        assert_eq!(actions[6].action, Action::Optimize);
        for (place, action) in actions.iter().enumerate() {
            let (start, end) = (place.pow(2), (place + 1).pow(2));
            assert_eq!(action.start_s, Seconds(start as f64));
            assert_eq!(action.duration_s, Seconds((end - start) as f64));
        }
    }

    #[test]
    fn prediction_and_measurement_start_from_the_same_bytes() {
        let timeline = timeline();
        assert_eq!(timeline.beside_buffers_bytes, Bytes(BESIDE));
        let (update, spans) = timeline.actions.split_last().expect("actions");
        for action in spans {
            let predicted = action.predicted_at_peak.total();
            assert_eq!(predicted, action.measured_peak_bytes);
            assert_eq!(action.predicted_after_bytes, action.measured_after_bytes);
        }
        // Beside what the last span leaves.
        let predicted = update.predicted_at_peak;
        assert_eq!(predicted.temporary, Bytes(7));
        assert_eq!(predicted.total(), Bytes(400 + 60 + 7));
        assert_eq!(update.predicted_after_bytes, Bytes(400));
    }
}
