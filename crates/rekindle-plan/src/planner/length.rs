//! How long chains may be.

use super::error::PlanError;
use super::kind::PlannerKind;

/// The longest chain that is searched: at O(stages) schedules of O(stages) actions, some seconds.
pub(crate) const MOST_STAGES: usize = 20_000;

/// The longest chain of which all windows are looked at, of which there are stages^2 / 2.
pub(crate) const MOST_STAGES_OF_WINDOWS: usize = 2_000;

/// Refuses a chain of more than `most` stages.
pub(super) fn check_length(
    planner: PlannerKind,
    stages: usize,
    most: usize,
) -> Result<(), PlanError> {
    if stages > most {
        return Err(PlanError::TooManyStages {
            planner,
            stages,
            most,
        });
    }
    Ok(())
}
