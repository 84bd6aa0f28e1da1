//! One step, action by action: what should have been held beside what was.
//!
//! Both sides count alike: on the processor the whole process's live bytes, on a GPU the live buffers in its pools,
//! without the driver's beside_buffers_bytes. On a GPU a meter sees memory between actions alone, so measured peaks there lack
//! what an action takes and gives back itself.

use std::time::Duration;

use rekindle_plan::{
    Action, Bytes, Chain, OptimizerCost, Parts, Schedule, Seconds, Violation,
    graph::{SpanPass, Transfer},
    simulate_watched,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use rekindle::{
    executor::TraceEntry,
    record::{Exchanges, NetworkReading, StagedPlan},
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

/// What the network did for one step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TimedExchange {
    /// What for.
    pub what: Exchanges,
    /// Bytes that the rank gave; of parameters, all that ranks sent.
    pub bytes: Bytes,
    /// When the network could begin, from the start of the step: this rank had handed it over, and the one before was done.
    pub start_s: Seconds,
    /// How long until it was done.
    pub duration_s: Seconds,
}

impl TimedExchange {
    /// Those of a step, in order.
    pub(super) fn all(readings: &[NetworkReading]) -> Vec<Self> {
        let seconds = |time: Duration| Seconds(time.as_secs_f64());
        let mut before = Duration::ZERO;
        let all = readings.iter().map(|one| {
            let start = one.begun.max(std::mem::replace(&mut before, one.done));
            Self {
                what: one.what,
                bytes: one.bytes,
                start_s: seconds(start),
                duration_s: seconds(one.done.saturating_sub(start)),
            }
        });
        all.collect()
    }
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

impl Timeline {
    /// The timeline of a traced step of `chain`, of whose schedule the executor has done `done`: all but `optimize`, and
    /// what only frozen stages would need. The driver's context is no part of what a meter reads.
    pub(super) fn new(
        step: usize,
        chain: &Chain,
        schedule: &Schedule,
        done: &[Action],
        trace: &[TraceEntry],
        beside_buffers_bytes: Bytes,
    ) -> Result<Self, Violation> {
        let mut actions = Vec::with_capacity(schedule.actions().len());
        let mut ran = vec![false; chain.stages.len()];
        let mut entries = trace.iter().peekable();
        let (mut first, mut start_s) = (0, 0.0);
        simulate_watched(chain, schedule, |scene| {
            let index = actions.len();
            let is_done = match done.get(index) {
                Some(&done) => same_work(scene.action, done),
                None => scene.action == Action::Optimize,
            };
            let Some(&entry) = entries.peek().filter(|_| is_done) else {
                return;
            };
            let pass = pass(scene.action, &mut ran);
            let share = 1.0 / (entry.index + 1 - first) as f64;
            let duration_s = (entry.done_at.as_secs_f64() - start_s) * share;
            actions.push(TimedAction {
                action: scene.action,
                pass,
                start_s: Seconds(start_s + duration_s * (index - first) as f64),
                duration_s: Seconds(duration_s),
                predicted_at_peak: Parts {
                    fixed: scene.at_peak.fixed - beside_buffers_bytes,
                    ..scene.at_peak
                },
                predicted_after_bytes: scene.after.total() - beside_buffers_bytes,
                measured_peak_bytes: entry.peak_bytes,
                measured_after_bytes: entry.in_use_bytes,
                reserved_bytes: entry.reserved_bytes,
            });
            if index == entry.index {
                (first, start_s) = (index + 1, entry.done_at.as_secs_f64());
                entries.next();
            }
        })?;
        Ok(Self {
            step,
            beside_buffers_bytes,
            actions,
            exchanges: Vec::new(),
        })
    }

    /// The timeline of a traced step of a recorded plan and the update after it.
    pub(super) fn of_recorded(
        step: usize,
        plan: &StagedPlan,
        optimizer: &OptimizerCost,
        trace: &[TraceEntry],
    ) -> Self {
        let beside = plan.beside_buffers;
        let live = |parts: Parts| Parts {
            fixed: parts.fixed - beside,
            ..parts
        };
        let spans = plan.spans.iter().zip(&plan.held);
        let predicted = spans.map(|(span, held)| {
            let pass = match (span.transfer, span.pass) {
                (Some(Transfer::Offload), _) => Pass::Offload,
                (Some(Transfer::Fetch), _) => Pass::Fetch,
                (None, SpanPass::Forward) => Pass::Forward,
                (None, SpanPass::Recompute) => Pass::Recompute,
                (None, SpanPass::Loss) => Pass::Loss,
                (None, SpanPass::Backward) => Pass::Backward,
            };
            (pass, live(held.at_peak), live(held.after).total())
        });
        let gradients = plan.held.last().map(|held| held.after).unwrap_or_default();
        let update = Parts {
            temporary: optimizer.temp_bytes,
            ..live(gradients)
        };
        let update = (Pass::Optimizer, update, update.fixed);
        let mut start_s = 0.0;
        let actions = predicted.chain([update]).zip(trace);
        let actions = actions.map(|((pass, at_peak, after), entry)| {
            let done_s = entry.done_at.as_secs_f64();
            let start_s = std::mem::replace(&mut start_s, done_s);
            TimedAction {
                action: entry.action,
                pass,
                start_s: Seconds(start_s),
                duration_s: Seconds(done_s - start_s),
                predicted_at_peak: at_peak,
                predicted_after_bytes: after,
                measured_peak_bytes: entry.peak_bytes,
                measured_after_bytes: entry.in_use_bytes,
                reserved_bytes: entry.reserved_bytes,
            }
        });
        Self {
            step,
            beside_buffers_bytes: beside,
            actions: actions.collect(),
            exchanges: Vec::new(),
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

/// Whether a step did this action of its schedule: without frozen stages it may keep less.
fn same_work(scheduled: Action, done: Action) -> bool {
    match (scheduled, done) {
        (Action::Backward(scheduled), Action::Backward(done)) => scheduled == done,
        (Action::Backward(_), _) | (_, Action::Backward(_)) => false,
        _ => scheduled.stage() == done.stage(),
    }
}

/// What an action is there for, where `ran` says which stages have run before it.
fn pass(action: Action, ran: &mut [bool]) -> Pass {
    match action {
        Action::Forward(stage)
        | Action::ForwardKeep(stage)
        | Action::ForwardTracked { stage, .. } => {
            if std::mem::replace(&mut ran[stage.0], true) {
                Pass::Recompute
            } else {
                Pass::Forward
            }
        }
        Action::Loss => Pass::Loss,
        Action::Backward(_) => Pass::Backward,
        Action::Optimize => Pass::Optimizer,
    }
}

#[cfg(test)]
mod tests {
    use rekindle_plan::{LossCost, OptimizerCost, Stage, StageId, planner};

    use super::*;

    const FIXED: u64 = 1_000;
    const CONTEXT: u64 = 600;

    fn chain() -> Chain {
        let stage = Stage {
            output_bytes: Bytes(10),
            saved_bytes: Bytes(30),
            ..Stage::default()
        };
        Chain {
            input_bytes: Bytes(1),
            input_grad: false,
            fixed_bytes: Bytes(FIXED),
            stages: vec![stage; 2],
            loss: LossCost::default(),
            optimizer: OptimizerCost::default(),
        }
    }

    fn entry(schedule: &Schedule, index: usize, at_ms: u64) -> TraceEntry {
        TraceEntry {
            action: schedule.actions()[index],
            index,
            in_use_bytes: Bytes(100 + index as u64),
            peak_bytes: Bytes(200 + index as u64),
            reserved_bytes: None,
            done_at: Duration::from_millis(at_ms),
        }
    }

    fn timeline(schedule: &Schedule, entries: &[(usize, u64)]) -> Timeline {
        let trace: Vec<_> = entries
            .iter()
            .map(|&(index, at_ms)| entry(schedule, index, at_ms))
            .collect();
        let done = schedule.without_frozen(0);
        let timeline = Timeline::new(4, &chain(), schedule, &done, &trace, Bytes(CONTEXT));
        timeline.expect("of this chain")
    }

    #[test]
    fn a_stage_that_runs_again_is_recomputed() {
        // forward_keep 0, tracked 1, loss, backward 1, tracked 0, backward 0, optimize
        let schedule = planner::uniform(2, 2).expect("in range");
        let every: Vec<_> = (0..schedule.actions().len()).map(|k| (k, 0)).collect();
        let passes: Vec<_> = timeline(&schedule, &every)
            .actions
            .iter()
            .map(|action| action.pass)
            .collect();
        use Pass::{Backward, Forward, Loss, Optimizer, Recompute};
        let expected = [
            Forward, Forward, Loss, Backward, Recompute, Backward, Optimizer,
        ];
        assert_eq!(passes, expected);
    }

    #[test]
    fn prediction_and_measurement_start_from_the_same_bytes() {
        let schedule = planner::none(2).expect("stages");
        let first = timeline(&schedule, &[(0, 5)]).actions[0];
        assert_eq!(first.predicted_at_peak.fixed, Bytes(FIXED - CONTEXT));
        // a_0, and the graph of stage 0.
        let held = FIXED - CONTEXT + 1 + 30;
        assert_eq!(first.predicted_after_bytes, Bytes(held));
        assert_eq!(first.predicted_at_peak.total(), Bytes(held));
    }

    #[test]
    fn what_only_frozen_stages_would_need_is_not_there() {
        let schedule = planner::none(2).expect("stages");
        let done = schedule.without_frozen(1);
        let trace: Vec<_> = (0..=done.len())
            .map(|index| TraceEntry {
                index,
                ..entry(&schedule, 0, 0)
            })
            .collect();
        let timeline = Timeline::new(4, &chain(), &schedule, &done, &trace, Bytes(0));
        let shown: Vec<_> = timeline
            .expect("of this chain")
            .actions
            .iter()
            .map(|action| action.action.to_string())
            .collect();
        let expected = [
            "forward_tracked 0",
            "forward_tracked 1",
            "loss",
            "backward 1",
            "optimize",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn actions_that_were_seen_together_share_the_time_and_the_reading() {
        let schedule = planner::none(2).expect("stages");
        let timeline = timeline(&schedule, &[(1, 10), (2, 14)]);
        let shown: Vec<_> = timeline
            .actions
            .iter()
            .map(|action| {
                let ms = |time: Seconds| (time.0 * 1e3).round() as u64;
                (
                    ms(action.start_s),
                    ms(action.duration_s),
                    action.measured_after_bytes.0,
                )
            })
            .collect();
        assert_eq!(shown, [(0, 5, 101), (5, 5, 101), (10, 4, 102)]);
        assert_eq!(timeline.actions[0].action, Action::tracked(0));
        assert_eq!(StageId(1), timeline.actions[1].action.stage().expect("one"));
    }
}
