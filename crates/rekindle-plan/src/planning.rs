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
    let equal_segments = |planner| {
        let all = EqualSegments::new(chain, planner)?;
        Ok::<_, PlanError>((all.within(budget)?, all.smallest()))
    };
    let (found, smallest) = match request.planner {
        planner @ (Planner::None | Planner::Segments(_)) => equal_segments(planner)?,
        planner => match equal_segments(Planner::None)? {
            (Some(plain), smallest) if planner == Planner::Auto => (Some(plain), smallest),
            _ if chain.stages.len() <= MOST_STAGES_OF_WINDOWS => {
                let optimal = Optimal::new(chain)?;
                let smallest = optimal.smallest.peak;
                (optimal.within(budget)?, smallest)
            }
            _ => {
                let single = SingleLevels::new(chain)?;
                match single.best(budget)? {
                    Some(plan) => return Ok(plan),
                    None => (None, single.smallest()),
                }
            }
        },
    };
    let smallest_of_all = || {
        let equal_segments = matches!(request.planner, Planner::None | Planner::Segments(_));
        let stages = chain.stages.len();
        if !equal_segments || stages > MOST_STAGES {
            Ok(smallest)
        } else if stages <= MOST_STAGES_OF_WINDOWS {
            Ok(smallest_peak(chain)?.0)
        } else {
            Ok::<_, PlanError>(smallest.min(SingleLevels::new(chain)?.smallest()))
        }
    };
    match found {
        Some(plan) => Ok(plan),
        None => Err(PlanError::Infeasible {
            planner: request.planner,
            budget,
            smallest,
            smallest_of_all: smallest_of_all()?,
        }),
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
