//! Entry points of the planners: [`plan`] takes a chain and a request, and returns a schedule with its predicted cost;
//! [`frontier`] returns the memory/time frontier.

use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::plan::Plan;
use crate::planner::{
    EqualSegments, MOST_STAGES, MOST_STAGES_OF_WINDOWS, Optimal, PlanError, SingleLevels,
    smallest_peak,
};
use crate::request::{Planner, Request};

/// Makes a plan.
///
/// Every planner returns its fastest schedule that fits; `auto` the plain run if that fits, else the plan of `optimal`.
/// A larger budget never makes the plan of a planner slower.
///
/// # Errors
/// [`PlanError::Infeasible`] with the smallest budget that the planner can meet, exactly, and other errors for an
/// invalid chain or request.
///
/// ```
/// use rekindle_plan::{Bytes, Chain, LossCost, OptimizerCost, Request, Seconds, Stage, plan};
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
/// let plan = plan(&chain, &Request::within(Bytes(1_500)))?;
/// assert!(plan.peak <= Bytes(1_500));
/// # Ok::<(), rekindle_plan::PlanError>(())
/// ```
pub fn plan(chain: &Chain, request: &Request) -> Result<Plan, PlanError> {
    chain.validate()?;
    let budget = request.budget.unwrap_or(Bytes::MAX);
    let infeasible = |smallest, smallest_of_all| PlanError::Infeasible {
        planner: request.planner,
        budget,
        smallest,
        smallest_of_all,
    };
    if request.planner == Planner::Auto {
        let plain = EqualSegments::new(chain, Planner::None)?;
        if let Some(plain) = plain.within(budget)? {
            return Ok(plain);
        }
    }
    let stages = chain.stages.len();
    match request.planner {
        Planner::None | Planner::Segments(_) => {
            let all = EqualSegments::new(chain, request.planner)?;
            if let Some(plan) = all.within(budget)? {
                return Ok(plan);
            }
            let smallest = all.smallest();
            let smallest_of_all = if stages <= MOST_STAGES_OF_WINDOWS {
                smallest_peak(chain)?.0
            } else if stages <= MOST_STAGES {
                smallest.min(SingleLevels::new(chain)?.smallest())
            } else {
                smallest
            };
            Err(infeasible(smallest, smallest_of_all))
        }
        _ if stages <= MOST_STAGES_OF_WINDOWS => {
            let optimal = Optimal::new(chain)?;
            let smallest = optimal.smallest.peak;
            let found = optimal.within(budget)?;
            found.ok_or_else(|| infeasible(smallest, smallest))
        }
        _ => {
            let single = SingleLevels::new(chain)?;
            let found = single.best(budget)?;
            found.ok_or_else(|| {
                let smallest = single.smallest();
                infeasible(smallest, smallest)
            })
        }
    }
}

/// The memory/time frontier of a planner, from the smallest peak to the largest: each larger plan is strictly faster.
///
/// For `optimal` and `auto`, the fastest of these plans that fits a budget is exactly as fast as the result of
/// [`plan`](crate::plan()), up to 2,000 stages. The same holds for `none` and `segments` as long as all schedules
/// together fit in memory. Longer chains are sampled: at 500 budgets, or at as many plans as fit. The cost is little
/// more than that of the plan for the largest budget.
///
/// # Errors
/// See [`plan`](crate::plan()), except errors about a budget.
pub fn frontier(chain: &Chain, planner: Planner) -> Result<Vec<Plan>, PlanError> {
    chain.validate()?;
    match planner {
        Planner::None | Planner::Segments(_) => EqualSegments::new(chain, planner)?.frontier(),
        _ if chain.stages.len() <= MOST_STAGES_OF_WINDOWS => Optimal::new(chain)?.frontier(),
        _ => SingleLevels::new(chain)?.frontier(),
    }
}
