//! Schedules in short, from which their actions are made.
//!
//! Equal segments and the best cuts have [one level](Schedule::single_level) of recomputation, and differ only in where they
//! cut. A thousand cuts of a long chain are small, their actions are not.

use std::borrow::Cow;

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
            Recipe::Cut(starts) => Cow::Owned(Schedule::single_level(stages, starts)),
            Recipe::Nested(schedule) => Cow::Borrowed(schedule),
        }
    }
}
