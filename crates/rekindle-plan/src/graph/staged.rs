//! Programs from schedules over stages: the results of the planners for chains, simulated on the graph.
//!
//! The chain of a recorded graph only gives upper bounds for its programs, so all schedules of a planner's frontier are
//! translated and simulated, not only the one that fits according to the chain: on the graph, a schedule for a larger
//! budget often fits a smaller one. Both ways to count storages that cross several borders ([`Crossing`]) are tried. None
//! of this depends on the budget, so a larger budget never gives a slower program.
//!
//! Hundreds of programs would take hundreds of times the memory of the graph, so only their costs are kept, and a
//! program is built again when it is needed.

use rand::Rng;

use super::borders::Border;
use super::plan::{GraphPlan, PlanError, finish, fitting};
use super::stages::{Crossing, Stages};
use super::{Found, Graph, GraphError, simulate};
use crate::bytes::Bytes;
use crate::planner::schedules;
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
    /// The fastest first.
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
        let crosses = borders.iter().any(|border| border.live.len() > 1);
        // For `segments`, whole segments are requested: hold nothing that they would recompute.
        let crosses = crosses && !matches!(planner, Planner::Segments(_));
        let held = crosses.then_some(Crossing::Held);
        let crossings = [Crossing::Carried].into_iter().chain(held);
        let stages = crossings.map(|crossing| Stages::new(graph, borders, crossing));
        let mut all = AllStaged::over(graph, stages.collect());
        all.add(planner, None, most)?;
        Ok(all)
    }

    /// No program yet.
    pub(crate) fn over(graph: &'a Graph, stages: Vec<Stages>) -> AllStaged<'a> {
        AllStaged {
            graph,
            stages,
            programs: Vec::new(),
        }
    }

    /// Adds the programs of a planner, about so many at most: from the smallest peak to the largest, or those among which the
    /// best for a budget is, if the graph costs exactly what its chain does.
    pub(crate) fn add(
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
        Ok(())
    }

    /// A schedule over some of the stages, with its cost.
    fn staged(&self, recipe: Recipe, stages: usize) -> Result<Staged, GraphError> {
        let mut staged = Staged {
            recipe,
            peak: Bytes::ZERO,
            seconds: 0.0,
            stages,
        };
        let found = self.program(&staged)?;
        (staged.peak, staged.seconds) = (found.peak(), found.simulated.time.0);
        Ok(staged)
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

    /// The fastest one with the smallest peak.
    pub(crate) fn leanest(&self) -> Option<&Staged> {
        self.programs.iter().min_by_key(|staged| staged.peak)
    }

    /// Those that no other equals or beats in both peak and time, from the smallest peak to the largest.
    pub(crate) fn frontier(&self) -> Vec<&Staged> {
        let mut useful: Vec<&Staged> = Vec::new();
        for staged in &self.programs {
            if useful.last().is_none_or(|last| staged.peak < last.peak) {
                useful.push(staged);
            }
        }
        useful.reverse();
        useful
    }

    /// The plan of the fastest one within the budget of a request; of a given number of segments, that with the smallest peak.
    ///
    /// # Errors
    /// None is within it: the error has the plan with the smallest peak.
    pub(crate) fn best(&self, planner: Planner, request: &Request) -> Result<GraphPlan, PlanError> {
        let budget = request.most_bytes();
        let best = match planner {
            Planner::Segments(Some(_)) => self.leanest(),
            _ => self.fastest_within(budget).or(self.leanest()),
        };
        // Every planner has a schedule for stages, and there is one at least.
        let none = || PlanError::Request("there are no stages to plan".to_owned());
        fitting(self.plan(planner, best.ok_or_else(none)?)?, request)
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
