//! The frontier: which budgets buy which times.

use crate::chain::Chain;
use crate::plan::{Plan, PlanRequest, best_planner, finish};
use crate::planner::{Family, Optimal, PlanError, PlannerKind, SingleLevels};

/// The useful plans of a planner, from the smallest peak to the largest: each larger one is strictly faster.
///
/// Of `optimal` and `auto`, for every budget the fastest of these plans that fits is exactly as fast as what
/// [`plan`](crate::plan()) returns with the same slots. So it is of `segments` up to 300 stages and of `none`, `uniform`,
/// `sqrt` and `revolve` as long as all schedules together fit in memory; longer chains are sampled: `segments` at
/// 500 budgets, the others at as many plans as fit. Costs little more than the plan for the largest budget.
///
/// # Errors
/// As [`plan`](crate::plan()); a budget is not among them.
pub fn frontier(chain: &Chain, kind: PlannerKind, slots: usize) -> Result<Vec<Plan>, PlanError> {
    chain.validate()?;
    if slots == 0 || slots > PlanRequest::MOST_SLOTS {
        return Err(PlanError::SlotCount { slots });
    }
    let kind = match kind {
        PlannerKind::Auto => best_planner(chain),
        kind => kind,
    };
    let found = match kind {
        PlannerKind::Segments => SingleLevels::new(chain)?.frontier()?,
        PlannerKind::Optimal | PlannerKind::Auto => Optimal::new(chain, slots)?.frontier()?,
        _ => Family::new(chain, kind, None)?.frontier()?,
    };
    let plans = found.into_iter().map(|found| finish(kind, found));
    Ok(plans.collect())
}
