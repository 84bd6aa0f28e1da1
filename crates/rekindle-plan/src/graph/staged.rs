//! Programs from schedules over stages: all results of the planners for chains, simulated on the graph.
//!
//! A chain only gives upper bounds for its programs, so all plans of a planner's frontier are translated and simulated,
//! not only the one that fits according to the chain: on the graph, a schedule for a larger budget often fits a smaller
//! one. Both ways to count storages that cross several borders ([`Crossing`]) are tried. None of this depends on the
//! budget, so a larger budget never gives a slower program.
//!
//! Hundreds of programs would take hundreds of times the memory of the graph, so only their costs are kept, and a
//! program is built again when it is needed.

use super::borders::Border;
use super::error::GraphPlanError;
use super::found::Found;
use super::index::Index;
use super::stages::{Crossing, Stages};
use super::{Graph, ProgramError};
use crate::bytes::Bytes;
use crate::planner::{self, PlanError};
use crate::request::Planner;
use crate::schedule::Schedule;

/// A schedule over stages, and the cost of its program.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    pub(crate) schedule: Schedule,
    pub(crate) peak: Bytes,
    pub(crate) seconds: f64,
    /// The index of its stages in [`AllStaged`].
    stages: usize,
}

/// All programs of a planner for chains.
pub(crate) struct AllStaged<'a> {
    graph: &'a Graph,
    /// One for each way to count storages that cross several borders.
    stages: Vec<Stages>,
    /// The fastest first.
    programs: Vec<Staged>,
}

impl<'a> AllStaged<'a> {
    /// Empty if the planner is not one for chains.
    pub(crate) fn new(
        graph: &'a Graph,
        index: &Index,
        borders: &[Border],
        planner: Planner,
    ) -> Result<AllStaged<'a>, GraphPlanError> {
        let mut all = AllStaged::none(graph);
        let crosses = borders.iter().any(|border| border.live.len() > 1);
        // For `segments`, exactly equal segments are requested: hold nothing that they would recompute.
        let crosses = crosses && !matches!(planner, Planner::Segments(_));
        let held = crosses.then_some(Crossing::Held);
        for crossing in [Crossing::Carried].into_iter().chain(held) {
            let stages = Stages::of(graph, index, borders, crossing);
            for schedule in schedules(&stages, planner)? {
                let found = Found::of(graph, &stages.program(graph, &schedule)?);
                all.programs.push(Staged {
                    schedule,
                    peak: found.peak(),
                    seconds: found.seconds(),
                    stages: all.stages.len(),
                });
            }
            all.stages.push(stages);
        }
        all.programs.sort_by(|a, b| {
            let time = a.seconds.total_cmp(&b.seconds);
            time.then(a.peak.cmp(&b.peak))
        });
        Ok(all)
    }

    /// No program at all.
    pub(crate) fn none(graph: &'a Graph) -> AllStaged<'a> {
        AllStaged {
            graph,
            stages: Vec::new(),
            programs: Vec::new(),
        }
    }

    /// The fastest one whose peak is within a budget.
    pub(crate) fn fastest_within(&self, budget: Bytes) -> Option<&Staged> {
        self.programs.iter().find(|staged| staged.peak <= budget)
    }

    /// The fastest one with the smallest peak.
    pub(crate) fn leanest(&self) -> Option<&Staged> {
        self.programs.iter().min_by_key(|staged| staged.peak)
    }

    /// The program of one of them.
    ///
    /// # Errors
    /// None for one of these programs: it was built before.
    pub(crate) fn program(&self, staged: &Staged) -> Result<Found, ProgramError> {
        let program = self.stages[staged.stages].program(self.graph, &staged.schedule)?;
        Ok(Found::of(self.graph, &program))
    }
}

fn schedules(stages: &Stages, planner: Planner) -> Result<Vec<Schedule>, PlanError> {
    let chain = stages.chain();
    match planner {
        Planner::Segments(segments) => {
            let stages = chain.stages.len();
            let counts = segments.map_or(1..=stages, |segments| segments..=segments);
            counts
                .map(|segments| planner::uniform(stages, segments))
                .collect()
        }
        Planner::Optimal => {
            let plans = crate::frontier(chain, planner)?;
            Ok(plans.into_iter().map(|plan| plan.schedule).collect())
        }
        Planner::None | Planner::Graph | Planner::Auto => Ok(Vec::new()),
    }
}
