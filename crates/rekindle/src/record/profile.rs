//! A measured step without its recording.

use rekindle_plan::{
    Bytes, Chain, Planner, Request, Seconds,
    graph::{Graph, GraphPlan, GraphPlanError, Link, Stages, plan_chain, simulate},
};
use serde::{Deserialize, Serialize};

use super::{
    RecordError, StagedPlan, StepPlan,
    options::{RESERVE, with_reserve, without_reserve},
    planned::PlannedRecording,
    program::plain_order,
    staged::stages,
    wanted::{Wanted, fitting},
};

/// A step as it was measured: all that plans are made from, so that they can be made where the model is not.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepProfile {
    /// The operations, what each takes, and as fixed bytes all that is held besides.
    pub graph: Graph,
    /// In use at most while the optimizer updates.
    pub update_bytes: Bytes,
    /// Of the fixed bytes, those that no live buffer holds: the driver's context, and what pools add.
    pub beside_buffers_bytes: Bytes,
    /// The link to host memory, where tensors may go there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
    /// What burn's autodiff takes in a plain step, besides its operations.
    pub autodiff_s: Seconds,
    /// Equal for recordings of equal steps.
    #[serde(with = "hexadecimal")]
    pub recording: u64,
}

impl StepProfile {
    pub(super) fn new<A>(planned: &PlannedRecording<A>, autodiff_s: Seconds) -> Self {
        Self {
            graph: planned.graph(),
            update_bytes: planned.update_bytes,
            beside_buffers_bytes: planned.beside,
            link: planned.numbers.offload.map(|offload| offload.link),
            autodiff_s,
            recording: planned.measured.recording.fingerprint,
        }
    }

    /// Plans like [`Step::set_budget`](super::Step::set_budget), for any kind of plan. The plan's stages have no names here, and its peak
    /// includes the memory of the plan made where the step was measured.
    ///
    /// # Errors
    ///
    /// If no plan fits the budget, or the graph is invalid.
    pub fn plan(
        &self,
        budget: Option<Bytes>,
        wanted: impl Into<Wanted>,
    ) -> Result<(StepPlan, StagedPlan), RecordError> {
        let within = budget.map(|budget| without_reserve(budget, RESERVE));
        let plan = wanted.into().plan(&self.graph, within, None, self.link);
        let (plan, fits) = fitting(plan, self.update_bytes, within)?;
        if !fits {
            return Err(RecordError::Infeasible {
                budget: budget.unwrap_or(Bytes::MAX),
                smallest: with_reserve(plan.simulated.peak.max(self.update_bytes)),
                floor: None,
            });
        }
        self.shown(&stages(&self.graph), plan, budget)
    }

    /// The smallest budget for which a planner has a plan.
    ///
    /// # Errors
    ///
    /// If the graph is invalid.
    pub fn smallest_budget(&self, planner: Planner) -> Result<Bytes, RecordError> {
        match self.plan(Some(Bytes::ZERO), planner) {
            Err(RecordError::Infeasible { smallest, .. }) => Ok(smallest),
            plan => plan.map(|(plan, _)| plan.predicted_peak),
        }
    }

    /// A plan in numbers and by stages.
    fn shown(
        &self,
        stages: &Stages,
        plan: GraphPlan,
        budget: Option<Bytes>,
    ) -> Result<(StepPlan, StagedPlan), RecordError> {
        let plain = simulate(&self.graph, &plain_order(&self.graph)?);
        let (operations, apart) = (self.graph.operations.len(), [self.update_bytes; 2]);
        let mut numbers = StepPlan::new(&plan, &plain, budget, apart, operations, self.link);
        numbers.plain_time += self.autodiff_s;
        let segments = plan.segments();
        let GraphPlan {
            program, offloaded, ..
        } = plan;
        let linked = self.graph.linked(&offloaded, self.link.as_ref());
        let linked = linked.map_err(GraphPlanError::from)?;
        let staged = StagedPlan {
            beside_buffers: self.beside_buffers_bytes,
            recording: self.recording,
            ..StagedPlan::of_stages(&linked, stages, &program, offloaded, segments)
        };
        Ok((numbers, staged))
    }
}

/// Plans for a chain alone and its own numbers, without a reserve. The operations are those of the graph that is
/// [made for it](Stages::of_chain).
///
/// # Errors
///
/// If no plan fits the budget, or the chain is invalid.
pub fn plan_of_chain(
    chain: &Chain,
    budget: Option<Bytes>,
    planner: Planner,
) -> Result<(StepPlan, StagedPlan), RecordError> {
    let request = Request {
        budget,
        planner,
        link: None,
    };
    let update_bytes = chain.optimizer_peak();
    let (plan, fits) = fitting(plan_chain(chain, &request), update_bytes, budget)?;
    if !fits {
        return Err(RecordError::Infeasible {
            budget: budget.unwrap_or(Bytes::MAX),
            smallest: plan.simulated.peak.max(update_bytes),
            floor: None,
        });
    }
    let (graph, stages) = Stages::of_chain(chain);
    let step = StepProfile {
        graph,
        update_bytes,
        beside_buffers_bytes: Bytes::ZERO,
        link: None,
        autodiff_s: Seconds::ZERO,
        recording: 0,
    };
    step.shown(&stages, plan, budget)
}

/// A 64-bit number as text, because JSON readers may keep only 53 bits.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}
