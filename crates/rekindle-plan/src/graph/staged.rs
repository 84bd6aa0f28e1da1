//! Programs from schedules over stages: everything that the planners of chains offer, simulated on the graph.
//!
//! A chain only bounds what its programs take, so all plans of a planner's frontier are translated and simulated, not
//! the one that the chain says fits: on the graph a schedule for a larger budget often fits a smaller one. Both ways
//! to count what crosses several borders ([`Crossing`]) are tried. None of this depends on the budget, so a larger
//! budget never makes the answer slower.

use super::borders::Border;
use super::found::Found;
use super::index::Index;
use super::stages::{Crossing, Stages};
use super::{Graph, GraphPlanError, GraphPlanner};
use crate::planner::{self, PlanError, PlannerKind};
use crate::schedule::Schedule;

/// A schedule over stages and its program.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    pub(crate) schedule: Schedule,
    pub(crate) found: Found,
}

/// All programs of a planner of chains, the fastest first; none for planners of other kinds.
pub(crate) fn staged(
    graph: &Graph,
    index: &Index,
    borders: &[Border],
    planner: GraphPlanner,
    slots: usize,
) -> Result<Vec<Staged>, GraphPlanError> {
    let mut all = Vec::new();
    let crosses = borders.iter().any(|border| border.live.len() > 1);
    // Equal segments are what was asked for: nothing is held that they would recompute.
    let crosses = crosses && !matches!(planner, GraphPlanner::Uniform(_));
    let held = crosses.then_some(Crossing::Held);
    for crossing in [Crossing::Carried].into_iter().chain(held) {
        let stages = Stages::of(graph, index, borders, crossing);
        for schedule in schedules(&stages, planner, slots)? {
            let found = Found::of(graph, &stages.program(graph, &schedule)?);
            all.push(Staged { schedule, found });
        }
    }
    all.sort_by(|a, b| {
        let time = a.found.seconds().total_cmp(&b.found.seconds());
        time.then(a.found.peak().cmp(&b.found.peak()))
    });
    Ok(all)
}

fn schedules(
    stages: &Stages,
    planner: GraphPlanner,
    slots: usize,
) -> Result<Vec<Schedule>, PlanError> {
    let chain = stages.chain();
    let kind = match planner {
        GraphPlanner::Uniform(segments) => {
            return Ok(vec![planner::uniform(chain.stages.len(), segments)?]);
        }
        GraphPlanner::Sqrt => PlannerKind::Sqrt,
        GraphPlanner::Segments => PlannerKind::Segments,
        GraphPlanner::Revolve => PlannerKind::Revolve,
        GraphPlanner::Optimal => PlannerKind::Optimal,
        GraphPlanner::None | GraphPlanner::Graph | GraphPlanner::Auto => return Ok(Vec::new()),
    };
    let plans = crate::frontier(chain, kind, slots)?;
    Ok(plans.into_iter().map(|plan| plan.schedule).collect())
}
