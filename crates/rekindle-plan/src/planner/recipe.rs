//! Schedules in short, from which their actions are made.
//!
//! Equal segments and the best cuts are schedules with one level of recomputation, and differ only in where they cut. In
//! the forward pass each segment except the last keeps only its input. The last segment is recorded as a whole and run
//! backward; then each earlier segment, from last to first, is recomputed, recorded as a whole and run backward. Every
//! stage outside the last segment runs forward twice. A thousand cuts of a long chain are small, their actions are not.

use std::borrow::Cow;

use crate::action::{Action, StageId};
use crate::schedule::Schedule;

/// A schedule in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Recipe {
    /// The first stages of the second and later segments, rising.
    Cut(Vec<usize>),
    /// A nested schedule.
    Nested(Schedule),
}

impl Recipe {
    /// Everything is kept: the plain training step.
    pub(crate) const WHOLE: Recipe = Recipe::Cut(Vec::new());

    /// The schedule for a chain of so many stages. Cost: O(actions).
    pub(crate) fn schedule(&self, stages: usize) -> Cow<'_, Schedule> {
        match self {
            Recipe::Cut(starts) => Cow::Owned(single_level(stages, starts)),
            Recipe::Nested(schedule) => Cow::Borrowed(schedule),
        }
    }
}

fn single_level(stages: usize, starts: &[usize]) -> Schedule {
    let mut edges = vec![0];
    edges.extend_from_slice(starts);
    edges.push(stages);
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
    Schedule::new(stages, actions)
}
