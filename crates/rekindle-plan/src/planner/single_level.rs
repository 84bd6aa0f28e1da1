//! Schedules with one level of recomputation, from their cut points.
//!
//! Equal segments and the best cuts differ only in where they cut. In the forward pass each segment except the last
//! keeps only its input. The last segment is recorded as a whole and run backward; then each earlier segment, from last
//! to first, is recomputed, recorded as a whole and run backward. Every stage outside the last segment runs forward
//! twice. Cost: O(stages).

use super::PlanError;
use crate::action::{Action, StageId};
use crate::schedule::Schedule;

/// The single-level schedule whose second and later segments start at the given stages.
///
/// # Errors
/// [`PlanError::NoStages`] for zero stages, [`PlanError::Cuts`] if the starts do not rise from 1 to below `stages`.
pub fn single_level(stages: usize, starts: &[usize]) -> Result<Schedule, PlanError> {
    if stages == 0 {
        return Err(PlanError::NoStages);
    }
    let mut edges = vec![0];
    edges.extend_from_slice(starts);
    edges.push(stages);
    if edges.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(PlanError::Cuts {
            starts: starts.to_vec(),
            stages,
        });
    }
    let mut actions = Vec::with_capacity(3 * stages + 2);
    let last = edges[edges.len() - 2];
    let forward = |i| Action::Forward(StageId(i));
    actions.extend((0..last).map(forward));
    for segment in edges.windows(2).rev() {
        let stages_of = segment[0]..segment[1];
        actions.extend(stages_of.clone().map(forward));
        if segment[1] == stages {
            actions.push(Action::Loss);
        }
        actions.extend(stages_of.rev().map(|i| Action::Backward(StageId(i))));
    }
    actions.push(Action::Optimize);
    Ok(Schedule::new(stages, actions))
}
