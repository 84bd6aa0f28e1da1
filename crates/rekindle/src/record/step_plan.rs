//! A plan in numbers.

use std::fmt;

use rekindle_plan::{
    Bytes, Planner, Seconds,
    graph::{Exchanged, GraphPlan, Link, Ring, Simulated},
};
use serde::{Deserialize, Serialize};

use super::{optimizer_state::StatePlan, update::InBackwardBecause};

/// A plan in numbers, at the time it was made.
///
/// Displayed as one line: budget, both peaks, time ratio, repeated operations, time to compare.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepPlan {
    /// The planner that found it.
    pub planner: Planner,
    /// The budget in bytes, also if it was given as a percentage of the plain peak. `None` for plans without a budget.
    pub budget: Option<Bytes>,
    /// Peak of the bytes in use during the step, its [comparison](Self::comparison_time) and the optimizer's update. It
    /// includes all memory of the process at the time of planning, so it can be compared with `budget` and `plain_peak`.
    /// [`Output::predicted_peak`](super::Output::predicted_peak) is the same for one run, with the process's memory at
    /// that time.
    pub predicted_peak: Bytes,
    /// Time of the step, including the [exchange](Self::exchange), also the part after the update. The optimizer's
    /// update is included only if it is part of the backward pass.
    pub predicted_time: Seconds,
    /// The peak of the plain run, counted like `predicted_peak`.
    pub plain_peak: Bytes,
    /// The time of the plain run, counted like `predicted_time`; on the CPU with what burn's autodiff takes, which a recorded
    /// step does not run.
    pub plain_time: Seconds,
    /// Time of [comparing](super::Recorded::with_comparison) a step with its recording, which `predicted_time` does not include; 0 if none is
    /// compared.
    pub comparison_time: Seconds,
    /// Operations of the recorded step.
    pub operations: usize,
    /// Number of repeated operations.
    pub repeated: usize,
    /// Offloading to host memory, if there is a link to it.
    pub offload: Option<Offload>,
    /// Time that the exchange adds to the step, if [ranks](crate::reduce) share it.
    pub exchange: Option<StepExchange>,
    /// Who keeps the optimizer's state, if ranks share the step and the optimizer is not [divided](crate::Sharded) already.
    pub state: Option<StatePlan>,
    /// Why updates are in the backward pass, if that was [chosen](super::Recorded::with_updates).
    pub in_backward_because: Option<InBackwardBecause>,
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
    /// The link, as it was measured.
    pub link: Link,
}

impl StepPlan {
    /// The numbers of a plan for a step with this many operations; `plain` is the cost of the plain order. The most bytes in
    /// use before and after the step are `apart`, and those of the plain run.
    pub(super) fn new(
        plan: &GraphPlan,
        plain: &Simulated,
        budget: Option<Bytes>,
        [apart, plain_apart]: [Bytes; 2],
        operations: usize,
        link: Option<Link>,
    ) -> Self {
        let run = &plan.simulated;
        Self {
            planner: plan.planner,
            budget,
            predicted_peak: run.peak.max(apart),
            predicted_time: run.time,
            plain_peak: plain.peak.max(plain_apart),
            plain_time: plain.time,
            comparison_time: Seconds(0.0),
            operations,
            repeated: run.repeated,
            offload: link.map(|link| Offload {
                tensors: plan.offloaded.len(),
                host_peak_bytes: run.host_peak,
                to_host_bytes: run.offloaded,
                to_device_bytes: run.fetched,
                transfer_s: run.transfer_time,
                link,
            }),
            exchange: None,
            state: None,
            in_backward_because: None,
        }
    }

    /// Adds permanently held bytes.
    pub(super) fn add_held(&mut self, bytes: Bytes) {
        self.predicted_peak += bytes;
        self.plain_peak += bytes;
    }
}

impl fmt::Display for StepPlan {
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
            self.predicted_time.0 / self.plain_time.0,
            self.repeated,
            self.operations,
        )?;
        if let Some(Offload {
            tensors: tensors @ 1..,
            host_peak_bytes,
            ..
        }) = self.offload
        {
            write!(
                f,
                ", {tensors} tensors wait on the host ({host_peak_bytes})"
            )?;
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
