//! The planners for chains: from the costs of stages to schedules.
//!
//! They only make schedules: what each takes is simulated on the graph of the step, or on the one that is made for a chain
//! ([`plan_chain`](crate::plan_chain)).
//!
//! # Long chains
//! `optimal` examines all windows of stages, of chains of up to 2,000; `auto` gives equal segments for longer ones. `segments`
//! without a number accepts up to 20,000 stages; `none`, and `segments` with a number, accept any number: longer chains than those
//! of `optimal` are cut into equal segments.

mod optimal;
mod segments;
mod terms;

use terms::Terms;

use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::graph::PlanError;
use crate::request::Planner;
use crate::schedule::Schedule;

/// The longest chain of which numbers of segments are tried: some million stages are simulated.
const MOST_STAGES: usize = 20_000;

/// The longest chain of which all windows are examined; there are stages^2 / 2 of them.
pub(crate) const MOST_STAGES_OF_WINDOWS: usize = 2_000;

/// The schedules of a planner, at least one: for every budget the best of them that fits, and the one with the smallest
/// peak. For a budget of the chain, everything but the optimizer counted: only those among which the best for this budget
/// is, or the one with the smallest peak.
///
/// # Errors
/// The chain or the number of segments is invalid, or the chain is too long.
pub(crate) fn schedules(
    chain: &Chain,
    planner: Planner,
    within: Option<Bytes>,
) -> Result<Vec<Schedule>, PlanError> {
    let stages = chain.stages.len();
    let most = match planner {
        Planner::None | Planner::Segments(Some(_)) => usize::MAX,
        Planner::Segments(None) => MOST_STAGES,
        Planner::Optimal | Planner::Auto => MOST_STAGES_OF_WINDOWS,
    };
    if stages > most {
        return Err(PlanError::Request(format!(
            "the {planner} planner takes at most {most} stages here, and the chain has {stages}: merge neighbouring stages, or \
             give a number of segments"
        )));
    }
    match planner {
        Planner::None => Ok(vec![Schedule::of_segments(&[stages])]),
        Planner::Segments(Some(count)) if count == 0 || count > stages.max(1) => {
            Err(PlanError::segments(count, stages))
        }
        Planner::Segments(Some(count)) => {
            let short = stages <= MOST_STAGES_OF_WINDOWS && chain.validate().is_ok();
            let leanest = short.then(|| segments::leanest(&Terms::new(chain), count));
            // On its graph a chain may take less than it says.
            let equal = segments::equal(stages, count);
            Ok(leanest.flatten().into_iter().chain([equal]).collect())
        }
        Planner::Segments(None) => Ok(segments::several(stages)),
        Planner::Optimal | Planner::Auto => {
            chain.validate()?;
            let room = within.map(|budget| (budget - chain.resident_bytes()).0);
            Ok(optimal::schedules(&Terms::new(chain), room))
        }
    }
}
