//! Schedules: valid lists of actions.

use serde::Serialize;

use crate::action::{Action, StageId};
use crate::holdings::Holdings;

pub use crate::holdings::Rule;

/// A valid schedule of one training step for a chain of [`stages`](Schedule::stages) stages.
///
/// Valid means that every action finds what it reads, that the loss runs once, that the backward of every stage runs
/// once, from the last stage to the first, that every stage is recorded once, before its backward, and that the optimizer,
/// if it is there, runs once and last.
///
/// serde writes the list of actions; reading one back needs the number of stages, so goes through [`Schedule::new`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Schedule {
    #[serde(skip)]
    stages: usize,
    actions: Vec<Action>,
}

/// The error of a list of actions that is not a valid schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// A chain has at least one stage.
    #[error("a schedule needs at least one stage")]
    NoStages,
    /// An action violates a rule.
    #[error("action {index} (`{action}`): {rule}")]
    Broken {
        /// The place of the action in the list, from 0.
        index: usize,
        /// The action.
        action: Action,
        /// The rule.
        rule: Rule,
    },
    /// The list ends before the loss.
    #[error("the schedule ends after {actions} actions without the loss")]
    NoLoss {
        /// The number of actions.
        actions: usize,
    },
    /// The list ends before the last backward pass.
    #[error("the schedule ends after {actions} actions without the backward of stages 0 to {last}")]
    MissingBackward {
        /// The number of actions.
        actions: usize,
        /// The last stage whose backward pass is missing.
        last: StageId,
    },
}

impl Schedule {
    /// Checks the actions against the rules of a chain of `stages` stages.
    ///
    /// # Errors
    /// The first action that violates a rule, with its index and the rule; or the actions missing at the end.
    pub fn new(stages: usize, actions: Vec<Action>) -> Result<Schedule, ScheduleError> {
        if stages == 0 {
            return Err(ScheduleError::NoStages);
        }
        let mut holdings = Holdings::new(stages);
        for (index, &action) in actions.iter().enumerate() {
            holdings
                .apply(action)
                .map_err(|rule| ScheduleError::Broken {
                    index,
                    action,
                    rule,
                })?;
        }
        match holdings.backward_reached() {
            Some(StageId(0)) => Ok(Schedule { stages, actions }),
            Some(StageId(next)) => Err(ScheduleError::MissingBackward {
                actions: actions.len(),
                last: StageId(next - 1),
            }),
            None => Err(ScheduleError::NoLoss {
                actions: actions.len(),
            }),
        }
    }

    /// The number of stages of the chain, without the loss.
    pub fn stages(&self) -> usize {
        self.stages
    }

    /// The actions in order.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// How often each stage runs forward, tracked or not.
    pub fn forward_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.stages];
        for action in self.actions() {
            if let Action::Forward(stage)
            | Action::ForwardKeep(stage)
            | Action::ForwardTracked(stage) = action
            {
                counts[stage.0] += 1;
            }
        }
        counts
    }

    /// Whether nothing is recomputed: every stage runs forward once.
    pub fn is_plain(&self) -> bool {
        self.forward_counts().iter().all(|&count| count == 1)
    }

    /// The segments of a single-level schedule, each as its first and last stage, from the first segment to the last;
    /// `None` for a nested one. A schedule that keeps everything is one segment.
    ///
    /// Single level means: untracked forwards of all segments but the last, then each segment, from the last to
    /// the first, is recorded as a whole and run backward.
    pub fn segments(&self) -> Option<Vec<(StageId, StageId)>> {
        let mut segments: Vec<(StageId, StageId)> = Vec::new();
        let mut extending = false;
        let mut forwarded = 0;
        for &action in &self.actions {
            match action {
                Action::Forward(stage) | Action::ForwardKeep(stage) => {
                    if !segments.is_empty() || stage.0 != forwarded {
                        return None;
                    }
                    forwarded += 1;
                }
                Action::ForwardTracked(stage) => match segments.last_mut() {
                    Some((_, last)) if extending => {
                        if stage.0 != last.0 + 1 {
                            return None;
                        }
                        *last = stage;
                    }
                    _ => {
                        segments.push((stage, stage));
                        extending = true;
                    }
                },
                Action::Loss | Action::Backward(_) | Action::Optimize => extending = false,
            }
        }
        segments.reverse();
        let tiles = segments
            .windows(2)
            .all(|pair| pair[1].0.0 == pair[0].1.0 + 1);
        let (first, last) = (segments.first()?, segments.last()?);
        let whole = first.0.0 == 0 && last.1.0 + 1 == self.stages && last.0.0 == forwarded;
        (tiles && whole).then_some(segments)
    }
}
