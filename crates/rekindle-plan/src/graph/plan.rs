//! Entry point of the planners for graphs: [`plan_graph`] takes a graph and a request and returns a program.

use super::borders::{Border, borders};
use super::error::GraphPlanError;
use super::found::Found;
use super::index::Index;
use super::ladder::Ladder;
use super::link::{self, Link};
use super::staged::AllStaged;
use super::{Graph, GraphError, OperationId, Program, Simulated, TensorId};
use crate::bytes::Bytes;
use crate::planner::{MOST_STAGES_OF_WINDOWS, PlanError};
use crate::request::{Planner, Request};
use crate::schedule::{self, Action, StageId};

/// A program with its cost and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphPlan {
    /// The program.
    pub program: Program,
    /// Its cost.
    pub simulated: Simulated,
    /// The requested planner; for `auto`, the planner that was chosen.
    pub planner: Planner,
    /// The schedule over stages that the program was made from, if there is one.
    pub schedule: Option<Vec<Action>>,
    /// The offloaded tensors. The program belongs to the graph [with transfers](Graph::with_transfers) of these.
    pub offloaded: Vec<TensorId>,
}

impl GraphPlan {
    /// First and last stage of each segment that is recomputed as a whole, if the program was made so.
    pub fn segments(&self) -> Option<Vec<(StageId, StageId)>> {
        schedule::segments(self.schedule.as_ref()?)
    }

    /// The plan that runs these operations of the graph [with transfers](Graph::with_transfers) of `offloaded`.
    ///
    /// # Errors
    /// The graph or the operations are invalid, or tensors are offloaded without a link.
    pub fn of_operations(
        graph: &Graph,
        link: Option<&Link>,
        operations: Vec<OperationId>,
        offloaded: Vec<TensorId>,
    ) -> Result<GraphPlan, GraphPlanError> {
        graph.validate()?;
        let linked = graph.linked(&offloaded, link)?;
        let program = Program::new(&linked, operations)?;
        let found = Found::of(&linked, &program);
        if let Some(link) = link
            && found.simulated.host_peak > link.host_bytes
        {
            let (takes, host) = (found.simulated.host_peak, link.host_bytes);
            return Err(GraphPlanError::Graph(GraphError(format!(
                "the plan holds {takes} in host memory, where it may hold {host}"
            ))));
        }
        Ok(GraphPlan {
            offloaded,
            ..finish(Planner::Graph, found, None)
        })
    }
}

/// Makes a plan.
///
/// `segments` and `optimal` plan over the stages between [`borders`](super::borders()), and return their fastest program
/// that fits. `graph` improves on the programs of `optimal`, so it is never slower. With a link, `graph` and `auto`
/// offload tensors if that is faster than recomputing, or if nothing else fits. No plan exceeds the budget.
///
/// # Errors
/// [`GraphPlanError::Infeasible`] with the planner's program of the smallest peak, and other errors for an invalid graph or
/// request.
pub fn plan_graph(graph: &Graph, request: &Request) -> Result<GraphPlan, GraphPlanError> {
    graph.validate()?;
    let planning = Planning::new(graph, request)?;
    match request.planner {
        Planner::Auto | Planner::Graph if planning.recorded.peak() > planning.budget => {
            let staged = planning.optimal()?;
            let on_device = planning.searched(&staged);
            match &request.link {
                Some(link) => planning.linked(link, &staged, on_device),
                None => on_device,
            }
        }
        Planner::None | Planner::Auto | Planner::Graph => {
            fitting(finish(Planner::None, planning.recorded, None), request)
        }
        planner @ (Planner::Segments(_) | Planner::Optimal) => {
            planning.all_staged(planner)?.best(planner, request)
        }
    }
}

/// The common input of all planners.
struct Planning<'a> {
    graph: &'a Graph,
    request: &'a Request,
    budget: Bytes,
    index: Index,
    borders: Vec<Border>,
    recorded: Found,
}

impl<'a> Planning<'a> {
    fn new(graph: &'a Graph, request: &'a Request) -> Result<Planning<'a>, GraphPlanError> {
        Ok(Planning {
            borders: borders(graph),
            recorded: Found::of(graph, &Program::recorded(graph)?),
            graph,
            request,
            budget: request.budget.unwrap_or(Bytes::MAX),
            index: Index::new(graph),
        })
    }

    fn all_staged(&self, planner: Planner) -> Result<AllStaged<'a>, GraphPlanError> {
        AllStaged::new(self.graph, &self.borders, planner)
    }

    /// The programs of `optimal`; none if the planners for chains reject the sizes, or are no help for so many stages.
    fn optimal(&self) -> Result<AllStaged<'a>, GraphPlanError> {
        if self.borders.len() > MOST_STAGES_OF_WINDOWS {
            return Ok(AllStaged::over(self.graph, Vec::new()));
        }
        match self.all_staged(Planner::Optimal) {
            Err(GraphPlanError::Plan(PlanError::Chain(_))) => {
                Ok(AllStaged::over(self.graph, Vec::new()))
            }
            staged => staged,
        }
    }

    fn searched(&self, staged: &AllStaged<'_>) -> Result<GraphPlan, GraphPlanError> {
        let planner = self.request.planner;
        let found = match self.ladder(staged).within(self.budget) {
            Ok(found) => found,
            Err(leanest) => return Err(infeasible(finish(planner, *leanest, None), self.request)),
        };
        match staged.fastest_within(self.budget) {
            Some(over_stages)
                if planner == Planner::Auto && over_stages.seconds <= found.seconds() =>
            {
                Ok(staged.plan(Planner::Optimal, over_stages)?)
            }
            _ => Ok(finish(Planner::Graph, found, None)),
        }
    }

    /// The better of a plan that keeps everything on the device and one that may offload tensors.
    fn linked(
        &self,
        link: &Link,
        staged: &AllStaged<'_>,
        on_device: Result<GraphPlan, GraphPlanError>,
    ) -> Result<GraphPlan, GraphPlanError> {
        let (graph, tensors) = self.graph.with_all_transfers(link)?;
        let index = Index::new(&graph);
        let ladder = Ladder {
            graph: &graph,
            index: &index,
            host_room: link.host_bytes,
            ..self.ladder(staged)
        };
        match (ladder.within(self.budget), &on_device) {
            (Ok(found), Ok(plan)) if found.seconds() >= plan.simulated.time.0 => on_device,
            (Ok(found), _) => self.moving(&found, &tensors, link),
            (Err(leanest), Err(GraphPlanError::Infeasible { leanest: other, .. }))
                if leanest.peak() < other.simulated.peak =>
            {
                let leanest = self.moving(&leanest, &tensors, link)?;
                Err(infeasible(leanest, self.request))
            }
            (Err(_), _) => on_device,
        }
    }

    /// The plan of a program of the graph with transfers of `tensors`.
    fn moving(
        &self,
        found: &Found,
        tensors: &[TensorId],
        link: &Link,
    ) -> Result<GraphPlan, GraphPlanError> {
        let operations = found.program.operations();
        let plain = self.graph.operations.len();
        let (offloaded, operations) = link::used(operations, tensors, plain);
        GraphPlan::of_operations(self.graph, Some(link), operations, offloaded)
    }

    fn ladder<'s>(&'s self, staged: &'s AllStaged<'s>) -> Ladder<'s> {
        Ladder {
            graph: self.graph,
            index: &self.index,
            recorded: &self.recorded,
            staged,
            host_room: Bytes::ZERO,
        }
    }
}

/// The plan if it is within the budget; if not, it is the one with the smallest peak.
pub(super) fn fitting(plan: GraphPlan, request: &Request) -> Result<GraphPlan, GraphPlanError> {
    match request.budget {
        Some(budget) if plan.simulated.peak > budget => Err(infeasible(plan, request)),
        _ => Ok(plan),
    }
}

fn infeasible(leanest: GraphPlan, request: &Request) -> GraphPlanError {
    GraphPlanError::Infeasible {
        planner: request.planner,
        budget: request.budget.unwrap_or(Bytes::MAX),
        leanest: Box::new(leanest),
    }
}

pub(super) fn finish(planner: Planner, found: Found, schedule: Option<Vec<Action>>) -> GraphPlan {
    GraphPlan {
        program: found.program,
        simulated: found.simulated,
        planner,
        schedule,
        offloaded: Vec::new(),
    }
}
