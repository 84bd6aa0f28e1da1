//! The door to the planners: [`plan`] takes a chain and a request, and returns a schedule with its predicted cost.

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::planner::{
    self, Candidate, Family, MOST_STAGES, MOST_STAGES_OF_WINDOWS, Optimal, PlanError, PlannerKind,
    Source, smallest_peak, smallest_segments_peak,
};
use crate::schedule::Schedule;
use crate::seconds::Seconds;

/// What to plan for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRequest {
    /// Which planner.
    pub planner: PlannerKind,
    /// The most bytes at any moment, everything counted; `None` for no limit.
    pub budget: Option<Bytes>,
    /// The number of segments, for `uniform` and `segments`; `None` leaves it to the planner.
    pub segments: Option<usize>,
    /// Into how many slots `optimal` cuts the memory in which nothing is recomputed, to tell plans apart; fewer where
    /// the table might pass 2 GB (from about 1,000 stages on, at the default), more where they cost nothing.
    pub slots: usize,
}

impl PlanRequest {
    /// The default number of slots.
    pub const SLOTS: usize = 500;
    /// The largest number of slots.
    pub const MOST_SLOTS: usize = 1_000_000;

    /// The fastest schedule within a budget.
    pub fn within(budget: Bytes) -> PlanRequest {
        PlanRequest {
            budget: Some(budget),
            ..PlanRequest::default()
        }
    }
}

impl Default for PlanRequest {
    fn default() -> PlanRequest {
        PlanRequest {
            planner: PlannerKind::Auto,
            budget: None,
            segments: None,
            slots: PlanRequest::SLOTS,
        }
    }
}

/// A schedule with its predicted cost and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The planner that was asked; of `auto`, the one that answered.
    pub planner: PlannerKind,
    /// The schedule.
    pub schedule: Schedule,
    /// Its simulated peak, everything counted.
    pub peak: Bytes,
    /// Its simulated time, the optimizer's included.
    pub step: Seconds,
    /// Which method the schedule came from.
    pub source: Source,
}

/// Makes a plan.
///
/// Every planner returns its fastest schedule that fits; `sqrt` without a budget returns its smallest. `auto` is as fast
/// as `optimal`, and prefers the plain run where that is as fast; in chains too long for `optimal` it returns the plan
/// of `segments` where the plain run does not fit.
///
/// A larger budget never makes the plan of a planner slower.
///
/// # Errors
/// [`PlanError::Infeasible`] with the smallest budget that the planner can meet, exactly, and other errors for a chain
/// or a request that makes no sense.
///
/// ```
/// use rekindle_plan::{Bytes, Chain, LossCost, OptimizerCost, PlanRequest, Seconds, Stage, plan};
///
/// let stage = Stage {
///     forward_s: Seconds(1.0),
///     backward_s: Seconds(2.0),
///     output_bytes: Bytes(100),
///     saved_bytes: Bytes(300),
///     ..Stage::default()
/// };
/// let chain = Chain {
///     input_bytes: Bytes(100),
///     input_grad: false,
///     fixed_bytes: Bytes(0),
///     stages: vec![stage; 8],
///     loss: LossCost::default(),
///     optimizer: OptimizerCost::default(),
/// };
/// let plan = plan(&chain, &PlanRequest { budget: Some(Bytes(1_500)), ..PlanRequest::default() })?;
/// assert!(plan.peak <= Bytes(1_500));
/// # Ok::<(), rekindle_plan::PlanError>(())
/// ```
pub fn plan(chain: &Chain, request: &PlanRequest) -> Result<Plan, PlanError> {
    chain.validate()?;
    let stages = chain.stages.len();
    let takes_segments = matches!(
        request.planner,
        PlannerKind::Uniform | PlannerKind::Segments
    );
    match request.segments {
        Some(_) if !takes_segments => {
            return Err(PlanError::SegmentsUnused {
                planner: request.planner,
            });
        }
        Some(segments) if segments == 0 || segments > stages => {
            return Err(PlanError::Segments { segments, stages });
        }
        _ => {}
    }
    if request.slots == 0 || request.slots > PlanRequest::MOST_SLOTS {
        return Err(PlanError::SlotCount {
            slots: request.slots,
        });
    }
    let budget = request.budget.unwrap_or(Bytes::MAX);
    match request.planner {
        PlannerKind::Auto => {
            let plain = Family::new(chain, PlannerKind::None, None)?.within(budget)?;
            match plain {
                Some(plain) if defaults_are_fastest(chain) => Ok(finish(PlannerKind::None, plain)),
                _ => planned(chain, best_planner(chain), budget, request),
            }
        }
        kind => planned(chain, kind, budget, request),
    }
}

/// What `auto` does where something is recomputed.
pub(crate) fn best_planner(chain: &Chain) -> PlannerKind {
    if chain.stages.len() <= MOST_STAGES_OF_WINDOWS {
        PlannerKind::Optimal
    } else {
        PlannerKind::Segments
    }
}

/// Whether the plain run is as fast as any: no stage has a faster alternative.
fn defaults_are_fastest(chain: &Chain) -> bool {
    chain.stages.iter().all(|stage| {
        let default = stage.forward_s + stage.backward_s;
        stage
            .ways()
            .all(|way| default <= way.forward_s + way.backward_s)
    })
}

/// The plan of any planner but `auto`.
fn planned(
    chain: &Chain,
    kind: PlannerKind,
    budget: Bytes,
    request: &PlanRequest,
) -> Result<Plan, PlanError> {
    let (found, smallest) = match kind {
        PlannerKind::Optimal | PlannerKind::Auto => {
            let optimal = Optimal::new(chain, request.slots)?;
            let smallest = optimal.smallest.peak;
            (optimal.within(budget)?, Some(smallest))
        }
        PlannerKind::Segments => {
            let schedule = planner::segments(chain, budget, request.segments)?;
            let candidate = |schedule| Candidate::new(chain, schedule, Source::Segments);
            (schedule.map(candidate).transpose()?, None)
        }
        _ => {
            let family = Family::new(chain, kind, request.segments)?;
            let smallest = family.smallest();
            let smallest_wanted = kind == PlannerKind::Sqrt && request.budget.is_none();
            let within = if smallest_wanted { smallest } else { budget };
            (family.within(within)?, Some(smallest))
        }
    };
    if let Some(found) = found {
        return Ok(finish(kind, found));
    }
    let smallest = match smallest {
        Some(smallest) => smallest,
        None => smallest_segments_peak(chain, request.segments)?,
    };
    Err(PlanError::Infeasible {
        planner: request.planner,
        budget,
        smallest,
        smallest_of_all: smallest_of_all(chain, smallest)?,
    })
}

/// The smallest budget of any planner here that takes so long a chain.
fn smallest_of_all(chain: &Chain, smallest: Bytes) -> Result<Bytes, PlanError> {
    let stages = chain.stages.len();
    if stages <= MOST_STAGES_OF_WINDOWS {
        Ok(smallest_peak(chain)?.0)
    } else if stages <= MOST_STAGES {
        Ok(smallest.min(smallest_segments_peak(chain, None)?))
    } else {
        Ok(smallest)
    }
}

pub(crate) fn finish(planner: PlannerKind, found: Candidate) -> Plan {
    Plan {
        planner,
        schedule: found.schedule,
        peak: found.peak,
        step: Seconds(found.time),
        source: found.source,
    }
}
