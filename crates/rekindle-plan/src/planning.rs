//! Entry points of the planners: [`plan`] takes a chain and a request, and returns a schedule with its predicted cost;
//! [`frontier`] returns the memory/time frontier.

use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::plan::{Plan, PlanRequest};
use crate::planner::{
    self, Family, MOST_STAGES, MOST_STAGES_OF_WINDOWS, Optimal, PlanError, PlanSource, PlannerKind,
    SingleLevels, smallest_peak, smallest_segments_peak,
};

/// Makes a plan.
///
/// Every planner returns its fastest schedule that fits; `sqrt` without a budget returns the one with the smallest
/// peak. `auto` is as fast as `optimal`, and prefers the plain run if that is as fast; for chains too long for
/// `optimal` it returns the plan of `segments` if the plain run does not fit.
///
/// A larger budget never makes the plan of a planner slower.
///
/// # Errors
/// [`PlanError::Infeasible`] with the smallest budget that the planner can meet, exactly, and other errors for an
/// invalid chain or request.
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
                Some(plain) if defaults_are_fastest(chain) => Ok(plain),
                _ => planned(chain, best_planner(chain), budget, request),
            }
        }
        kind => planned(chain, kind, budget, request),
    }
}

/// The planner that `auto` uses if something must be recomputed.
fn best_planner(chain: &Chain) -> PlannerKind {
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
            let plan = |schedule| Plan::new(chain, kind, schedule, PlanSource::Segments);
            (schedule.map(plan).transpose()?, None)
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
        return Ok(found);
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

/// The smallest budget of any planner here that accepts a chain of this length.
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

/// The memory/time frontier of a planner, from the smallest peak to the largest: each larger plan is strictly faster.
///
/// For `optimal` and `auto`, the fastest of these plans that fits a budget is exactly as fast as the result of
/// [`plan`](crate::plan()) with the same slots. The same holds for `segments` up to 300 stages, and for `none`,
/// `uniform`, `sqrt` and `revolve` as long as all schedules together fit in memory. Longer chains are sampled:
/// `segments` at 500 budgets, the others at as many plans as fit. The cost is little more than that of the plan for the
/// largest budget.
///
/// # Errors
/// See [`plan`](crate::plan()), except errors about a budget.
pub fn frontier(chain: &Chain, kind: PlannerKind, slots: usize) -> Result<Vec<Plan>, PlanError> {
    chain.validate()?;
    if slots == 0 || slots > PlanRequest::MOST_SLOTS {
        return Err(PlanError::SlotCount { slots });
    }
    let kind = match kind {
        PlannerKind::Auto => best_planner(chain),
        kind => kind,
    };
    match kind {
        PlannerKind::Segments => SingleLevels::new(chain)?.frontier(),
        PlannerKind::Optimal | PlannerKind::Auto => Optimal::new(chain, slots)?.frontier(),
        _ => Family::new(chain, kind, None)?.frontier(),
    }
}
