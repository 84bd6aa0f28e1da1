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

use super::borders::Border;
use super::plan::{GraphPlan, PlanError, finish, fitting};
use super::stages::Stages;
use super::{Found, Graph, GraphError, simulate};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::planner::{MOST_STAGES_OF_WINDOWS, schedules};
use crate::request::{Planner, Request};
use crate::schedule::Recipe;
use crate::search;

/// So many operations are simulated at most to move the starts of segments.
const MOST_MOVED: usize = 3_000_000;

/// A schedule over stages, and the cost of its program.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    recipe: Recipe,
    pub(crate) peak: Bytes,
    pub(crate) seconds: f64,
    /// The index of its stages in [`AllStaged`].
    stages: usize,
}

/// Programs of the planners for chains.
pub(crate) struct AllStaged<'a> {
    graph: &'a Graph,
    /// The ways to cut the graph into stages.
    stages: Vec<Stages>,
    /// The fastest first; each has a smaller peak than the one before it.
    programs: Vec<Staged>,
}

impl<'a> AllStaged<'a> {
    /// The programs of a planner, `segments` or `optimal`: of each way to cut the graph about so many at most.
    pub(crate) fn new(
        graph: &'a Graph,
        borders: &[Border],
        planner: Planner,
        most: usize,
    ) -> Result<AllStaged<'a>, PlanError> {
        // For `segments`, whole segments are requested: hold nothing that they would recompute.
        let whole = matches!(planner, Planner::Segments(_));
        let crosses = borders.iter().any(|border| border.live > 1) && !whole;
        let most_crossed = [usize::MAX].into_iter().chain(crosses.then_some(1));
        let stages = most_crossed.map(|most| Stages::new(graph, borders, most));
        let mut all = AllStaged::over(graph, stages.collect());
        all.add(planner, None, most)?;
        Ok(all)
    }

    /// No program yet.
    fn over(graph: &'a Graph, stages: Vec<Stages>) -> AllStaged<'a> {
        AllStaged {
            graph,
            stages,
            programs: Vec::new(),
        }
    }

    /// Adds the programs of a planner, about so many at most: from the smallest peak to the largest, or those among which the
    /// best for a budget is, if the graph costs exactly what its chain does.
    fn add(
        &mut self,
        planner: Planner,
        within: Option<Bytes>,
        most: usize,
    ) -> Result<(), PlanError> {
        for (place, stages) in self.stages.iter().enumerate() {
            let recipes = schedules(stages.chain(), planner, within)?;
            let each = recipes.len().div_ceil(most);
            for recipe in recipes.into_iter().step_by(each) {
                let staged = self.staged(recipe, place)?;
                self.programs.push(staged);
            }
        }
        self.programs.sort_by(|a, b| {
            let time = a.seconds.total_cmp(&b.seconds);
            time.then(a.peak.cmp(&b.peak))
        });
        self.programs.dedup_by(|next, last| next.peak >= last.peak);
        Ok(())
    }

    /// A schedule over some of the stages, with its cost.
    fn staged(&self, recipe: Recipe, stages: usize) -> Result<Staged, GraphError> {
        let staged = Staged {
            recipe,
            peak: Bytes::ZERO,
            seconds: 0.0,
            stages,
        };
        let found = self.program(&staged)?;
        Ok(Staged {
            peak: found.peak(),
            seconds: found.simulated.time.0,
            ..staged
        })
    }

    /// Of a given number of segments, leaves the leanest program, with starts of segments moved at random to lower its peak: the
    /// costs of stages by which they were cut are upper bounds on a graph. A higher peak is kept for a while (threshold
    /// accepting; Dueck & Scheuer 1990, J. Computational Physics 90).
    pub(crate) fn move_starts(&mut self) -> Result<(), GraphError> {
        let Some(leanest) = self.leanest() else {
            return Ok(());
        };
        let stages = self.stages[leanest.stages].chain().stages.len();
        let (mut best, mut last) = (leanest.clone(), leanest.clone());
        let mut random = search::random();
        let most = MOST_MOVED / self.graph.operations.len().max(1);
        for left in (0..most).rev() {
            let starts = last.recipe.0.iter().rev().map(|(_, start)| *start);
            let mut starts: Vec<usize> = starts.collect();
            if starts.is_empty() {
                break;
            }
            for _ in 0..=random.random_range(0..3) {
                let place = random.random_range(0..starts.len());
                let before = place.checked_sub(1).map_or(0, |before| starts[before]);
                let after = *starts.get(place + 1).unwrap_or(&stages);
                let near = starts[place] + random.random_range(0..5);
                starts[place] = match random.random_bool(0.5) {
                    true => random.random_range(before + 1..after),
                    false => near.saturating_sub(2).clamp(before + 1, after - 1),
                };
            }
            let moved = self.staged(Recipe::segments(&starts), last.stages)?;
            let higher = best.peak.0 / 16 * left as u64 / most as u64;
            if moved.peak <= last.peak + Bytes(higher) {
                last = moved;
                if (last.peak.0, last.seconds) < (best.peak.0, best.seconds) {
                    best = last.clone();
                }
            }
        }
        self.programs = vec![best];
        Ok(())
    }

    /// The fastest one whose peak is within a budget.
    pub(crate) fn fastest_within(&self, budget: Bytes) -> Option<&Staged> {
        self.programs.iter().find(|staged| staged.peak <= budget)
    }

    /// The one with the smallest peak.
    pub(crate) fn leanest(&self) -> Option<&Staged> {
        self.programs.last()
    }

    /// The plan of the fastest one within the budget of a request; of a given number of segments, that with the smallest peak.
    ///
    /// # Errors
    /// None is within it: the error has the plan with the smallest peak.
    pub(crate) fn best(&self, planner: Planner, request: &Request) -> Result<GraphPlan, PlanError> {
        let within = match planner {
            Planner::Segments(Some(_)) => None,
            _ => self.fastest_within(request.most_bytes()),
        };
        // Every planner has a schedule for stages, and there is one at least.
        let none = || PlanError::Request("there are no stages to plan".to_owned());
        let best = within.or(self.leanest()).ok_or_else(none)?;
        fitting(self.plan(planner, best)?, request)
    }

    /// The plan of one of them.
    pub(crate) fn plan(&self, planner: Planner, staged: &Staged) -> Result<GraphPlan, GraphError> {
        let stages = self.stages[staged.stages].chain().stages.len();
        let schedule = staged.recipe.schedule(stages);
        Ok(finish(planner, self.program(staged)?, Some(schedule)))
    }

    /// The program of one of them.
    ///
    /// # Errors
    /// None for one of these programs: it was built before.
    pub(crate) fn program(&self, staged: &Staged) -> Result<Found, GraphError> {
        let stages = &self.stages[staged.stages];
        let schedule = staged.recipe.schedule(stages.chain().stages.len());
        let program = stages.program(self.graph, &schedule)?;
        let simulated = simulate(self.graph, &program);
        Ok(Found { program, simulated })
    }
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
    let plans = all.programs.iter().rev();
    plans
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
