//! `none`: keep everything, recompute nothing.
//!
//! The plain training step: least time of all schedules, most memory. Cost: O(stages).

use super::{PlanError, single_level};
use crate::schedule::Schedule;

/// The schedule that keeps everything: all stages are one segment.
///
/// # Errors
/// [`PlanError::NoStages`] for zero stages.
pub fn none(stages: usize) -> Result<Schedule, PlanError> {
    single_level(stages, &[])
}
