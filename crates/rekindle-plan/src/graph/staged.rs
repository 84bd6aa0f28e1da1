//! Programs from schedules over stages: the results of the planners for chains, simulated on the graph; and plans of a chain
//! alone, on the graph that is made for it ([`Stages::of_chain`]).
//!
//! The chain of a recorded graph only gives upper bounds for its programs, so all schedules of a planner's frontier are
//! translated and simulated, not only the one that fits according to the chain: on the graph, a schedule for a larger
//! budget often fits a smaller one. Storages that cross several borders are carried and, in other programs, held. None
//! of this depends on the budget, so a larger budget never gives a slower program.
//!
//! Hundreds of programs would take hundreds of times the memory of the graph, so only their costs are kept, and a
//! program is built again when it is needed.

use rand::Rng;

use super::plan::{GraphPlan, PlanError, fitting};
use super::stages::Stages;
use super::{Graph, GraphError, Program, simulate};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::planner::{MOST_STAGES_OF_WINDOWS, schedules};
use crate::request::{Planner, Request};
use crate::schedule::Schedule;

/// So many operations are simulated at most to move the starts of segments.
const MOST_MOVED: usize = 3_000_000;

/// A schedule over stages, and the cost of its program.
#[derive(Clone)]
pub(super) struct Staged<'a> {
    graph: &'a Graph,
    stages: &'a Stages,
    schedule: Schedule,
    pub(super) peak: Bytes,
    seconds: f64,
}

impl<'a> Staged<'a> {
    fn new(
        graph: &'a Graph,
        stages: &'a Stages,
        schedule: Schedule,
    ) -> Result<Staged<'a>, GraphError> {
        let simulated = simulate(graph, &stages.program(graph, &schedule)?);
        Ok(Staged {
            graph,
            stages,
            schedule,
            peak: simulated.peak,
            seconds: simulated.time.0,
        })
    }

    /// Its program.
    ///
    /// # Errors
    /// None: it was built before.
    pub(super) fn program(&self) -> Result<Program, GraphError> {
        self.stages.program(self.graph, &self.schedule)
    }

    pub(super) fn plan(&self, planner: Planner) -> Result<GraphPlan, GraphError> {
        Ok(GraphPlan {
            schedule: Some(self.schedule.clone()),
            ..GraphPlan::new(self.graph, self.program()?, planner)
        })
    }

    /// One of segments with their starts moved at random to lower its peak: the costs of stages by which they were cut are upper
    /// bounds on a graph. A higher peak is kept for a while (threshold accepting; Dueck & Scheuer 1990, J. Computational
    /// Physics 90).
    pub(super) fn with_moved_starts(&self) -> Result<Staged<'a>, GraphError> {
        let (mut best, mut last) = (self.clone(), self.clone());
        let mut random = crate::random();
        let most = MOST_MOVED / self.graph.operations.len().max(1);
        for left in (0..most).rev() {
            let mut ends = last.schedule.ends();
            let inner = ends.len() - 1;
            if inner == 0 {
                break;
            }
            for _ in 0..=random.random_range(0..3) {
                let place = random.random_range(0..inner);
                let before = place.checked_sub(1).map_or(0, |before| ends[before]);
                let after = ends[place + 1];
                let near = ends[place] + random.random_range(0..5);
                ends[place] = match random.random_bool(0.5) {
                    true => random.random_range(before + 1..after),
                    false => near.saturating_sub(2).clamp(before + 1, after - 1),
                };
            }
            let moved = Staged::new(self.graph, self.stages, Schedule::of_segments(&ends))?;
            let higher = best.peak.0 / 16 * left as u64 / most as u64;
            if moved.peak <= last.peak + Bytes(higher) {
                last = moved;
                if (last.peak.0, last.seconds) < (best.peak.0, best.seconds) {
                    best = last.clone();
                }
            }
        }
        Ok(best)
    }
}

/// The programs of a planner, `segments` or `optimal`, over each of some cuts of a graph, about `most` at most for each: the
/// fastest first, each with a smaller peak than the one before it; or those among which the best for a budget is, if the
/// graph costs exactly what its chain does.
pub(super) fn all_staged<'a>(
    graph: &'a Graph,
    cuts: &'a [Stages],
    planner: Planner,
    within: Option<Bytes>,
    most: usize,
) -> Result<Vec<Staged<'a>>, PlanError> {
    let mut all = Vec::new();
    for stages in cuts {
        let schedules = schedules(stages.chain(), planner, within)?;
        let each = schedules.len().div_ceil(most);
        for schedule in schedules.into_iter().step_by(each) {
            all.push(Staged::new(graph, stages, schedule)?);
        }
    }
    all.sort_by_key(|staged| (staged.seconds.to_bits(), staged.peak));
    all.dedup_by(|next, last| next.peak >= last.peak);
    Ok(all)
}

/// The fastest of [`all_staged`] within the budget of a request, or else that with the smallest peak; the latter of a given
/// number of segments.
pub(super) fn best<'a>(
    all: &'a [Staged<'a>],
    request: &Request,
) -> Result<&'a Staged<'a>, PlanError> {
    let within = match request.planner {
        Planner::Segments(Some(_)) => None,
        _ => all.iter().find(|one| one.peak <= request.most_bytes()),
    };
    // Every planner has a schedule for stages, and there is one at least.
    let none = || PlanError::Request("there are no stages to plan".to_owned());
    within.or(all.last()).ok_or_else(none)
}

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
    let planner = Planner::None;
    let plain = Request {
        planner,
        ..*request
    };
    if request.planner == Planner::Auto
        && let Ok(plan) = plan_chain(chain, &plain)
    {
        return Ok(plan);
    }
    chain.validate()?;
    let (graph, stages) = Stages::of_chain(chain);
    let cuts = [stages];
    let planner = over_chain(chain, request.planner);
    let all = all_staged(&graph, &cuts, planner, request.budget, usize::MAX)?;
    fitting(best(&all, request)?.plan(planner)?, request)
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
    let cuts = [stages];
    let all = all_staged(&graph, &cuts, planner, None, usize::MAX)?;
    let plans = all.iter().rev().map(|staged| staged.plan(planner));
    plans.map(|plan| Ok(each(plan?))).collect()
}

/// The planner for a chain, which has only stages.
fn over_chain(chain: &Chain, planner: Planner) -> Planner {
    match planner {
        Planner::Auto if chain.stages.len() > MOST_STAGES_OF_WINDOWS => Planner::Segments(None),
        Planner::Auto => Planner::Optimal,
        planner => planner,
    }
}
