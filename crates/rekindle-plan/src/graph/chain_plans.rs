//! Plans of a chain, priced on the graph that is made for it ([`Stages::of_chain`]).

use super::plan::{GraphPlan, PlanError};
use super::staged::AllStaged;
use super::stages::Stages;
use crate::chain::Chain;
use crate::planner::MOST_STAGES_OF_WINDOWS;
use crate::request::{Planner, Request};

/// Makes a plan for a chain.
///
/// Every planner returns its fastest schedule that fits; `auto` the plain run if that fits, else the plan of `optimal`, or of
/// `segments` for more stages than `optimal` takes. A larger budget never makes the plan of a planner slower. The optimizer is
/// not part of the plan: a budget must also be at least [`Chain::optimizer_peak`].
///
/// # Errors
/// [`PlanError::Infeasible`] with the planner's plan of the smallest peak, and other errors for an invalid chain or
/// request.
pub fn plan_chain(chain: &Chain, request: &Request) -> Result<GraphPlan, PlanError> {
    chain.validate()?;
    let (graph, stages) = Stages::of_chain(chain);
    let mut all = AllStaged::over(&graph, vec![stages]);
    if request.planner == Planner::Auto {
        all.add(Planner::None, None, 1)?;
        if let Some(plain) = all.fastest_within(request.most_bytes()) {
            return Ok(all.plan(Planner::None, plain)?);
        }
    }
    let planner = over_chain(chain, request.planner);
    all.add(planner, request.budget, usize::MAX)?;
    all.best(planner, request)
}

/// The memory/time frontier of a planner for a chain, from the smallest peak to the largest: each larger plan is strictly
/// faster. `each` is called with one plan after another, so that only one is in memory.
///
/// The fastest of these plans that fits a budget is exactly as fast as the result of [`plan_chain`]. The cost is little more
/// than that of the plan for the largest budget.
///
/// # Errors
/// See [`plan_chain`], except errors about a budget.
pub fn chain_frontier<T>(
    chain: &Chain,
    planner: Planner,
    mut each: impl FnMut(GraphPlan) -> T,
) -> Result<Vec<T>, PlanError> {
    chain.validate()?;
    let (graph, stages) = Stages::of_chain(chain);
    let planner = over_chain(chain, planner);
    let mut all = AllStaged::over(&graph, vec![stages]);
    all.add(planner, None, usize::MAX)?;
    let points = all.frontier().into_iter();
    points
        .map(|staged| Ok(each(all.plan(planner, staged)?)))
        .collect()
}

/// The planner for a chain, which has only stages.
fn over_chain(chain: &Chain, planner: Planner) -> Planner {
    match planner {
        Planner::Auto if chain.stages.len() > MOST_STAGES_OF_WINDOWS => Planner::Segments(None),
        Planner::Auto => Planner::Optimal,
        planner => planner,
    }
}
