//! The door to the planners of graphs: [`plan_graph`] takes a graph and a request, and returns a program with its cost.

use serde::{Deserialize, Serialize};

use super::borders::{Border, borders_of};
use super::found::Found;
use super::index::Index;
use super::search::{EFFORT, Search};
use super::smallest::smallest;
use super::staged::{Staged, staged};
use super::{Graph, GraphError, Program, ProgramError, Simulated};
use crate::bytes::Bytes;
use crate::planner::PlanError;
use crate::schedule::Schedule;

/// The peaks of the programs over stages that a search starts from, as multiples of the budget.
const LARGER: [f64; 6] = [1.0, 1.05, 1.15, 1.3, 1.6, 2.2];

/// The planners of graphs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphPlanner {
    /// Every operation once, in recorded order.
    None,
    /// So many segments of equally many stages.
    Uniform(usize),
    /// About sqrt(n) segments of stages, cut by bytes.
    Sqrt,
    /// The best single-level cut between stages.
    Segments,
    /// Binomial schedules over stages.
    Revolve,
    /// The best persistent schedule over stages.
    Optimal,
    /// Single operations, stages or not.
    Graph,
    /// `none` if it fits, else the faster of `optimal` and `graph`.
    #[default]
    Auto,
}

/// What to plan for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphRequest {
    /// The most bytes at any moment, everything counted; `None` for no limit.
    pub budget: Option<Bytes>,
    /// Which planner.
    pub planner: GraphPlanner,
    /// Into how many slots `optimal` cuts the memory; as [`PlanRequest::slots`](crate::PlanRequest::slots).
    pub slots: usize,
}

impl GraphRequest {
    /// The fastest program within a budget.
    pub fn within(budget: Bytes) -> GraphRequest {
        GraphRequest {
            budget: Some(budget),
            ..GraphRequest::default()
        }
    }
}

impl Default for GraphRequest {
    fn default() -> GraphRequest {
        GraphRequest {
            budget: None,
            planner: GraphPlanner::Auto,
            slots: crate::PlanRequest::SLOTS,
        }
    }
}

/// A program with its cost and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphPlan {
    /// The program.
    pub program: Program,
    /// What it costs.
    pub simulated: Simulated,
    /// The planner that was asked; of `auto`, the one that answered.
    pub planner: GraphPlanner,
    /// The schedule over stages that the program comes from, where it comes from one.
    pub schedule: Option<Schedule>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GraphPlanError {
    /// No program that was found fits the budget.
    #[error("no program fits {} bytes ({budget}): the smallest budget found to work is {} bytes ({smallest})", budget.0, smallest.0)]
    Infeasible {
        /// The planner that was asked.
        planner: GraphPlanner,
        /// The budget.
        budget: Bytes,
        /// The smallest peak that the planner found.
        smallest: Bytes,
    },
    /// The graph breaks a rule.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The planners of chains refuse the request or the sizes.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A program breaks a rule: a planner is wrong.
    #[error(transparent)]
    Program(#[from] ProgramError),
}

/// Makes a plan.
///
/// All planners but `none`, `graph` and `auto` plan over the stages between [`borders`](super::borders), and return
/// their fastest program that fits; `sqrt` without a budget returns its leanest. `graph` improves on the programs of `optimal`, so it is
/// never slower. No plan exceeds the budget.
///
/// # Errors
/// [`GraphPlanError::Infeasible`] with the smallest budget that the planner found to work, and other errors for a graph
/// or a request that makes no sense.
pub fn plan_graph(graph: &Graph, request: &GraphRequest) -> Result<GraphPlan, GraphPlanError> {
    graph.validate()?;
    let planning = Planning::new(graph, request.slots)?;
    let budget = request.budget.unwrap_or(Bytes::MAX);
    let found = match request.planner {
        GraphPlanner::None => planning.recorded_within(budget),
        GraphPlanner::Auto | GraphPlanner::Graph if planning.recorded.peak() <= budget => {
            planning.recorded_within(budget)
        }
        GraphPlanner::Auto | GraphPlanner::Graph => planning.searched(request.planner, budget)?,
        staged => planning.staged(staged, budget, request.budget.is_none())?,
    };
    found.map_err(|smallest| GraphPlanError::Infeasible {
        planner: request.planner,
        budget,
        smallest,
    })
}

/// The leanest program that was found, and what it costs.
///
/// # Errors
/// The graph breaks a rule.
pub fn smallest_program(graph: &Graph) -> Result<(Program, Simulated), GraphPlanError> {
    graph.validate()?;
    let planning = Planning::new(graph, crate::PlanRequest::SLOTS)?;
    let staged = planning.optimal()?;
    let found = planning.smallest(&staged);
    Ok((found.program, found.simulated))
}

/// What all planners start from.
struct Planning<'a> {
    graph: &'a Graph,
    index: Index,
    borders: Vec<Border>,
    recorded: Found,
    slots: usize,
}

/// A plan, or the smallest budget that the planner can meet.
type Planned = Result<GraphPlan, Bytes>;

impl<'a> Planning<'a> {
    fn new(graph: &'a Graph, slots: usize) -> Result<Planning<'a>, GraphPlanError> {
        let index = Index::new(graph);
        Ok(Planning {
            borders: borders_of(graph, &index),
            recorded: Found::of(graph, &Program::recorded(graph)?),
            graph,
            index,
            slots,
        })
    }

    fn recorded_within(&self, budget: Bytes) -> Planned {
        if self.recorded.peak() > budget {
            return Err(self.recorded.peak());
        }
        Ok(finish(GraphPlanner::None, self.recorded.clone(), None))
    }

    fn staged(
        &self,
        planner: GraphPlanner,
        budget: Bytes,
        unlimited: bool,
    ) -> Result<Planned, GraphPlanError> {
        let mut all = staged(self.graph, &self.index, &self.borders, planner, self.slots)?;
        if planner == GraphPlanner::Sqrt && unlimited {
            all.sort_by_key(|staged| staged.found.peak());
        }
        let smallest = all.iter().map(|staged| staged.found.peak()).min();
        let fitting = all.into_iter().find(|staged| staged.found.peak() <= budget);
        Ok(match fitting {
            Some(Staged { schedule, found }) => Ok(finish(planner, found, Some(schedule))),
            None => Err(smallest.unwrap_or(Bytes::MAX)),
        })
    }

    /// The programs of `optimal`; none where the chain's planners refuse its sizes.
    fn optimal(&self) -> Result<Vec<Staged>, GraphPlanError> {
        match staged(
            self.graph,
            &self.index,
            &self.borders,
            GraphPlanner::Optimal,
            self.slots,
        ) {
            Err(GraphPlanError::Plan(_)) => Ok(Vec::new()),
            staged => staged,
        }
    }

    fn searched(&self, planner: GraphPlanner, budget: Bytes) -> Result<Planned, GraphPlanError> {
        let staged = self.optimal()?;
        let mut outlines = vec![&self.recorded];
        // Faster programs over stages that do not fit: the walks make room in them by evicting single tensors.
        outlines.extend(LARGER.iter().filter_map(|factor| {
            let larger = Bytes((budget.0 as f64 * factor) as u64);
            let found = staged.iter().map(|staged| &staged.found);
            found.clone().find(|found| found.peak() <= larger)
        }));
        let mut best = Search::new(self.graph, &self.index, EFFORT).within(budget, &outlines);
        if best.is_none() {
            let smallest = self.smallest(&staged);
            if smallest.peak() > budget {
                return Ok(Err(smallest.peak()));
            }
            let outlines = [&self.recorded, &smallest];
            best = Search::new(self.graph, &self.index, EFFORT).within(budget, &outlines);
        }
        let over_stages = staged
            .into_iter()
            .find(|staged| staged.found.peak() <= budget);
        Ok(Ok(match (best, over_stages) {
            (best, Some(Staged { schedule, found }))
                if planner == GraphPlanner::Auto
                    && best.as_ref().is_none_or(|b| b.seconds() >= found.seconds()) =>
            {
                finish(GraphPlanner::Optimal, found, Some(schedule))
            }
            (Some(best), _) => finish(GraphPlanner::Graph, best, None),
            (None, _) => return Ok(Err(self.recorded.peak())),
        }))
    }

    fn smallest(&self, staged: &[Staged]) -> Found {
        let mut outlines = vec![&self.recorded];
        let found = staged.iter().map(|staged| &staged.found);
        outlines.extend(found.min_by_key(|found| found.peak()));
        smallest(self.graph, &self.index, &outlines).unwrap_or_else(|| self.recorded.clone())
    }
}

fn finish(planner: GraphPlanner, found: Found, schedule: Option<Schedule>) -> GraphPlan {
    GraphPlan {
        program: found.program,
        simulated: found.simulated,
        planner,
        schedule,
    }
}
