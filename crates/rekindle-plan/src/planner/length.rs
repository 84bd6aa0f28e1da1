//! Limits on the length of chains.

use super::error::PlanError;
use super::kind::PlannerKind;

/// The longest chain that is searched: O(stages) schedules of O(stages) actions take some seconds.
pub(crate) const MOST_STAGES: usize = 20_000;

/// The longest chain of which all windows are examined; there are stages^2 / 2 of them.
pub(crate) const MOST_STAGES_OF_WINDOWS: usize = 2_000;

/// Fails for a chain of more than `most` stages.
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
