//! Schedules: the order in which a training step passes through its stages.
//!
//! A schedule is a list of [`Action`]s; what each forward keeps follows from the list. With a_i the input of stage i,
//! a_{i+1} its output, X_{i+1} the graph that a tracked forward of stage i records (a_{i+1} lives inside it) and y_i the
//! gradient of a_i:
//!
//! | action, as [written](written()) | when | reads | leaves |
//! |---|---|---|---|
//! | `forward_tracked i` | the last forward before `backward i` | a_i or X_i | a_i and X_{i+1} |
//! | `forward_keep i` | a_i is read again before it is made again | a_i or X_i | a_i and a_{i+1} |
//! | `forward i` | otherwise | a_i or X_i | a_{i+1}; a stand-alone a_i is dropped |
//! | `loss` | | a_L or X_L | y_L; a stand-alone a_L is dropped |
//! | `backward i` | | y_{i+1}, X_{i+1}, a_i or X_i | y_i and the stage's parameter gradients; y_{i+1}, X_{i+1} and a stand-alone a_i are freed (never a_0) |
//! | `optimize` | | all parameter gradients | none of them |
//!
//! Planners make it so that every action finds what it reads, that the loss and the backward of every stage run once,
//! from the last stage to the first, and that the optimizer runs last.

use std::collections::HashMap;
use std::iter::once;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// The number of a stage, from 0. In a chain of L stages the loss counts as stage L.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[derive(derive_more::Display)]
pub struct StageId(pub usize);

/// One action of a training step. [`Display`](std::fmt::Display) and serde write it as text: `forward 3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, derive_more::Display)]
pub enum Action {
    /// The forward of a stage, for the first time or again.
    #[display("forward {_0}")]
    Forward(StageId),
    /// The loss, and the gradient of the last output.
    #[display("loss")]
    Loss,
    /// The backward pass of a stage.
    #[display("backward {_0}")]
    Backward(StageId),
    /// The optimizer's step, which frees all parameter gradients.
    #[display("optimize")]
    Optimize,
}

impl Serialize for Action {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Action {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Action, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (name, number) = text.split_once(' ').unwrap_or((&text, ""));
        let stage = || number.parse().map(StageId).map_err(D::Error::custom);
        match (name, number) {
            ("forward", _) => Ok(Action::Forward(stage()?)),
            ("loss", "") => Ok(Action::Loss),
            ("backward", _) => Ok(Action::Backward(stage()?)),
            ("optimize", "") => Ok(Action::Optimize),
            _ => Err(D::Error::custom(format!(
                "{text:?} is not an action of a step"
            ))),
        }
    }
}

/// A schedule in short: a thousand cuts of a long chain are small, their actions are not. It has the ranges of stages that run
/// forward, each from a first stage to before another: all stages first, with the loss behind them, then each next range when
/// all stages from its end on have run backward.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule(pub(crate) Vec<(usize, usize)>);

impl Schedule {
    /// The schedule with one level of recomputation whose segments end before these stages, the last of which is the number
    /// of stages. In the forward pass each segment except the last keeps only its input. The last segment is recorded as a
    /// whole and run backward; then each earlier segment, from last to first, is recomputed, recorded as a whole and run
    /// backward. Every stage outside the last segment runs forward twice.
    pub fn of_segments(ends: &[usize]) -> Schedule {
        let starts = once(0).chain(ends.iter().copied());
        let mut ranges: Vec<(usize, usize)> = starts.zip(ends.iter().copied()).collect();
        ranges.reverse();
        if let Some((start, _)) = ranges.first_mut() {
            *start = 0;
        }
        Schedule(ranges)
    }

    /// The segments, each as its first and last stage, from the first segment to the last; `None` if there is more than one
    /// level of recomputation. A schedule that keeps everything is one segment.
    pub fn segments(&self) -> Option<Vec<(StageId, StageId)>> {
        let ends = self.ends();
        if Schedule::of_segments(&ends) != *self {
            return None;
        }
        let starts = once(&0).chain(&ends);
        let stages =
            |(start, end): (&usize, &usize)| Some((StageId(*start), StageId(end.checked_sub(1)?)));
        starts.zip(&ends).map(stages).collect()
    }

    /// Where the ranges end, from the last range to the first: where segments do.
    pub(crate) fn ends(&self) -> Vec<usize> {
        self.0.iter().rev().map(|(_, end)| *end).collect()
    }

    /// The actions. Cost: O(actions).
    pub fn actions(&self) -> Vec<Action> {
        let forward = |i| Action::Forward(StageId(i));
        let backward = |i| Action::Backward(StageId(i));
        let mut actions = Vec::new();
        for (place, &(start, end)) in self.0.iter().enumerate() {
            actions.extend((start..end).map(forward));
            if place == 0 {
                actions.push(Action::Loss);
            }
            let next = self.0.get(place + 1).map_or(0, |(_, end)| *end);
            actions.extend((next..end).rev().map(backward));
        }
        actions.push(Action::Optimize);
        actions
    }
}

/// The actions as text, which tells apart what forwards keep: `forward`, `forward_keep` or `forward_tracked`.
pub fn written(actions: &[Action]) -> Vec<String> {
    // From the end: where each stage next runs forward, if it does before its backward.
    let mut next: HashMap<usize, usize> = HashMap::new();
    let later_first = actions.iter().enumerate().rev();
    let written = later_first.map(|(place, action)| {
        let Action::Forward(StageId(i)) = *action else {
            return action.to_string();
        };
        let again = next.insert(i, place);
        let made_again = i.checked_sub(1).and_then(|before| next.get(&before));
        match (again, made_again) {
            (None, _) => format!("forward_tracked {i}"),
            (Some(again), Some(&made)) if made < again => action.to_string(),
            _ => format!("forward_keep {i}"),
        }
    });
    let mut written: Vec<String> = written.collect();
    written.reverse();
    written
}
