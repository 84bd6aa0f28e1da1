//! A plan in numbers.

use std::fmt;

use rekindle_plan::{
    Bytes, Planner, Seconds, StageId,
    graph::{Exchanged, Graph, GraphPlan, Link, Ring, Simulated, simulate},
};
use serde::{Deserialize, Serialize};

use super::{
    RecordError,
    optimizer_state::StatePlan,
    program::plain_order,
    update::{InBackwardBecause, Update},
};

/// A plan in numbers, at the time it was made: what is shown of it, and what records and files say of it.
///
/// Displayed as one line: budget, both peaks, time ratio, repeated operations, time to compare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlanSummary {
    /// The planner that found it, by the name that asks for it: `auto` for plans of single operations.
    pub planner: Planner,
    /// The budget, also if it was given as a percentage of the plain peak; `null` without one.
    #[serde(rename = "budget_bytes")]
    pub budget: Option<Bytes>,
    /// Peak of the counted bytes during the step, its comparison with the recording and the optimizer's update. It includes
    /// all memory of the process at the time of planning, so it can be compared with the budget and with the plain peak. The
    /// predicted peak of a step's output is the same for one run, with the process's memory at that time.
    #[serde(rename = "predicted_peak_bytes")]
    pub predicted_peak: Bytes,
    /// The part of the predicted peak that is in live buffers, as a meter measures it: at any time on the CPU, between
    /// actions on a GPU.
    #[serde(rename = "predicted_in_use_bytes")]
    pub predicted_in_use: Bytes,
    /// Time of the step, the exchange included, also its part after the update, and moves of the optimizer's state. Of a recorded
    /// step, the update itself is included only if it is part of the backward pass; of a training's step it always is, and so are all parts of
    /// the batch.
    #[serde(rename = "predicted_step_s")]
    pub predicted_time: Seconds,
    /// The peak of the plain run, counted like the predicted peak.
    #[serde(rename = "plain_peak_bytes")]
    pub plain_peak: Bytes,
    /// The time of the plain run, counted like the predicted time; on the CPU with what burn's autodiff takes, which a
    /// recorded step does not run.
    #[serde(rename = "plain_step_s")]
    pub plain_time: Seconds,
    /// Time of [comparing](super::Comparison) a step with its recording, which `predicted_time` does not include; 0 if none is
    /// compared.
    #[serde(skip)]
    pub comparison_time: Seconds,
    /// First and last stage of each segment that is recomputed as a whole; `null` where stages are recomputed in another way.
    #[cfg_attr(feature = "schema", schemars(with = "Option<Vec<[usize; 2]>>"))]
    pub segments: Option<Vec<(StageId, StageId)>>,
    /// When parameters are updated.
    pub update: Update,
    /// Why updates are in the backward pass, if that was chosen and not asked for; else `null`.
    pub in_backward_because: Option<InBackwardBecause>,
    /// Operations of the recorded step; of a chain alone, those of the graph that is made for it.
    pub operations: usize,
    /// Number of repeated operations.
    #[serde(rename = "recomputed")]
    pub repeated: usize,
    /// Offloading to host memory; only where there is a link to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<Offload>,
    /// What the exchange takes of the step; only where ranks share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<StepExchange>,
    /// Who keeps the optimizer's state, and what either way takes of this rank; only where ranks share the step and the
    /// optimizer is not divided already.
    #[serde(
        rename = "optimizer_state",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub state: Option<StatePlan>,
}

/// What the exchange between ranks takes of a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StepExchange {
    /// The ranks, and the link from each to its neighbour in a ring.
    pub ring: Ring,
    /// Whether the link was measured; else it was given.
    pub link_measured: bool,
    /// What is predicted.
    pub taken: Exchanged,
}

/// What a plan does with the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Offload {
    /// Tensors that wait in host memory between forward and backward.
    pub tensors: usize,
    /// The most bytes of them there at any moment, beside the budget.
    pub host_peak_bytes: Bytes,
    /// Bytes that a step copies to the host.
    pub to_host_bytes: Bytes,
    /// Bytes that a step copies back.
    pub to_device_bytes: Bytes,
    /// What the copies take of the step's time: nothing is computed meanwhile.
    pub transfer_s: Seconds,
    /// Bytes of the optimizer's state that are on the host between updates, besides those tensors.
    #[serde(rename = "optimizer_state_bytes", default)]
    pub state_bytes: Bytes,
    /// What moving them to the device and back adds to each step.
    #[serde(rename = "optimizer_state_s", default)]
    pub state_s: Seconds,
    /// The link, as it was measured.
    pub link: Link,
}

impl PlanSummary {
    /// The numbers of a plan for a graph, without its [stages](Self::divide); `plain` is the cost of the plain order. The most
    /// bytes in use before and after the step are `apart`, and those of the plain run.
    pub(super) fn new(
        plan: &GraphPlan,
        plain: &Simulated,
        graph: &Graph,
        budget: Option<Bytes>,
        [apart, plain_apart]: [Bytes; 2],
        link: Option<Link>,
    ) -> Self {
        let run = &plan.simulated;
        let predicted_peak = run.peak.max(apart);
        Self {
            planner: match plan.planner {
                Planner::Auto => Planner::Auto,
                Planner::Segments(_) => Planner::Segments(None),
                other => other,
            },
            budget,
            predicted_peak,
            predicted_in_use: predicted_peak,
            predicted_time: run.time,
            plain_peak: plain.peak.max(plain_apart),
            plain_time: plain.time,
            comparison_time: Seconds::ZERO,
            segments: plan.segments(),
            update: match graph.updates().is_empty() {
                true => Update::After,
                false => Update::InBackward,
            },
            in_backward_because: None,
            operations: graph.updates().start,
            repeated: run.repeated,
            offload: link.map(|link| Offload {
                tensors: plan.offloaded.len(),
                host_peak_bytes: run.host_peak,
                to_host_bytes: run.offloaded,
                to_device_bytes: run.fetched,
                transfer_s: run.transfer_time,
                state_bytes: Bytes::ZERO,
                state_s: Seconds::ZERO,
                link,
            }),
            exchange: None,
            state: None,
        }
    }

    /// The numbers of a plan for a graph alone.
    #[doc(hidden)]
    pub fn of_graph(
        graph: &Graph,
        plan: &GraphPlan,
        budget: Option<Bytes>,
    ) -> Result<Self, RecordError> {
        let plain = simulate(graph, &plain_order(graph)?);
        let apart = [Bytes::ZERO; 2];
        Ok(Self::new(plan, &plain, graph, budget, apart, None))
    }

    /// Adds permanently held bytes.
    pub(super) fn add_held(&mut self, bytes: Bytes) {
        self.predicted_peak += bytes;
        self.plain_peak += bytes;
    }

    /// Without recomputes and offloaded tensors, all stages are one segment.
    pub(super) fn divide(&mut self, stages: usize) {
        let last = stages.checked_sub(1);
        let last = last.filter(|_| self.repeated == 0 && self.moves().is_none());
        let whole = last.map(|last| vec![(StageId(0), StageId(last))]);
        self.segments = self.segments.take().or(whole);
    }

    /// Offloading, if any tensor is offloaded.
    #[must_use]
    pub fn moves(&self) -> Option<&Offload> {
        self.offload.as_ref().filter(|offload| offload.tensors > 0)
    }

    /// Offloading, if optimizer state is on the host between updates.
    #[must_use]
    pub fn state_on_host(&self) -> Option<&Offload> {
        let offload = self.offload.as_ref();
        offload.filter(|offload| offload.state_bytes > Bytes::ZERO)
    }

    /// The step's time as a multiple of the plain step's.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        self.predicted_time.0 / self.plain_time.0
    }
}

impl fmt::Display for PlanSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.budget {
            Some(budget) => write!(f, "budget {budget}: ")?,
            None => f.write_str("no budget: ")?,
        }
        write!(
            f,
            "predicted peak {} instead of {}, {:.2}x the plain time; {} of {} operations recomputed",
            self.predicted_peak,
            self.plain_peak,
            self.slowdown(),
            self.repeated,
            self.operations,
        )?;
        if let Some(moves) = self.moves() {
            let (tensors, bytes) = (moves.tensors, moves.host_peak_bytes);
            write!(f, ", {tensors} tensors wait on the host ({bytes})")?;
        }
        if let Some(state) = self.state_on_host() {
            write!(f, ", {} of optimizer state on the host", state.state_bytes)?;
        }
        match self.comparison_time {
            Seconds(0.0) => Ok(()),
            time => write!(
                f,
                ", {:.1}% more to compare it with its recording",
                100.0 * time.0 / self.predicted_time.0
            ),
        }
    }
}
