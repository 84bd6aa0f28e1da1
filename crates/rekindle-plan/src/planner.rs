//! The planners: from a chain and a budget to a schedule.
//!
//! [`plan`](crate::plan()) is the entry point for all of them; the functions here are only the algorithms.
//!
//! | planner | what | file |
//! |---|---|---|
//! | `none`, `segments` | keep everything; segments of equal length | `uniform.rs` |
//! | `optimal` | the best persistent schedule | `optimal.rs` |
//!
//! `cuts.rs` finds the best single-level cut within a budget, `single_levels.rs` those for all budgets. `terms.rs` has
//! the symbols that the recurrences share, `windows.rs` finds equal windows; `single_level.rs` and `persistent.rs` turn
//! cuts and trees into actions; `smallest_peak.rs` is the lower bound.
//!
//! # Long chains
//! `optimal` examines all windows of chains of up to 2,000 stages; of longer ones it finds the best single-level cut.
//! It and `segments` without a number accept up to 20,000 stages; `none`, and `segments` with a number, accept any
//! number.

mod cuts;
mod error;
mod optimal;
mod persistent;
mod single_level;
mod single_levels;
mod smallest_peak;
mod source;
mod terms;
#[cfg(test)]
mod test_chain;
mod uniform;
mod windows;

pub use error::PlanError;
pub use single_level::single_level;
pub use smallest_peak::smallest_peak;
pub use source::{PlanSource, Slots};
pub use uniform::{none, uniform};

pub(crate) use optimal::Optimal;
pub(crate) use single_levels::SingleLevels;
pub(crate) use uniform::EqualSegments;

use crate::request::Planner;

/// The longest chain that is searched: O(stages) schedules of O(stages) actions take some seconds.
pub(crate) const MOST_STAGES: usize = 20_000;

/// The longest chain of which all windows are examined; there are stages^2 / 2 of them.
pub(crate) const MOST_STAGES_OF_WINDOWS: usize = 2_000;

/// Fails for a chain of more than `most` stages.
fn check_length(planner: Planner, stages: usize, most: usize) -> Result<(), PlanError> {
    if stages > most {
        return Err(PlanError::TooManyStages {
            planner,
            stages,
            most,
        });
    }
    Ok(())
}
