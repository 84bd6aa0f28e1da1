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

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// The number of a stage, from 0. In a chain of L stages the loss counts as stage L.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
#[derive(derive_more::Display)]
pub struct StageId(pub usize);

/// One action of a training step. [`Display`](fmt::Display) and serde write it as text: `forward 3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The forward of a stage, for the first time or again.
    Forward(StageId),
    /// The loss, and the gradient of the last output.
    Loss,
    /// The backward pass of a stage.
    Backward(StageId),
    /// The optimizer's step, which frees all parameter gradients.
    Optimize,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Forward(stage) => write!(f, "forward {stage}"),
            Action::Loss => f.write_str("loss"),
            Action::Backward(stage) => write!(f, "backward {stage}"),
            Action::Optimize => f.write_str("optimize"),
        }
    }
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

/// The schedule with one level of recomputation whose second and later segments start at these stages. In the forward
/// pass each segment except the last keeps only its input. The last segment is recorded as a whole and run backward; then
/// each earlier segment, from last to first, is recomputed, recorded as a whole and run backward. Every stage outside the
/// last segment runs forward twice.
#[doc(hidden)]
pub fn single_level(stages: usize, starts: &[usize]) -> Vec<Action> {
    let edges = edges(stages, starts);
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
    actions
}

/// A schedule in short: a thousand cuts of a long chain are small, their actions are not.
#[derive(Clone, Debug)]
pub(crate) enum Recipe {
    /// Segments, of which the second and later start at these stages.
    Segments(Vec<usize>),
    /// These actions, of a nested schedule.
    Nested(Vec<Action>),
}

impl Recipe {
    /// Everything is kept: the plain training step.
    pub(crate) const WHOLE: Recipe = Recipe::Segments(Vec::new());

    /// The schedule for a chain of so many stages. Cost: O(actions).
    pub(crate) fn schedule(&self, stages: usize) -> Cow<'_, [Action]> {
        match self {
            Recipe::Segments(starts) => single_level(stages, starts).into(),
            Recipe::Nested(actions) => actions.into(),
        }
    }
}

/// Where segments start, and the number of stages.
fn edges(stages: usize, starts: &[usize]) -> Vec<usize> {
    let mut edges = vec![0];
    edges.extend_from_slice(starts);
    edges.push(stages);
    edges
}

/// The segments of a schedule with [one level](single_level), each as its first and last stage, from the first segment to
/// the last; `None` for another one. A schedule that keeps everything is one segment.
pub(crate) fn segments(actions: &[Action]) -> Option<Vec<(StageId, StageId)>> {
    let backward = |action: &&Action| matches!(action, Action::Backward(_));
    let stages = actions.iter().filter(backward).count();
    // Where a segment's backward ends, and the segment before it is recomputed.
    let ends = actions.windows(2).filter_map(|pair| match pair {
        [Action::Backward(StageId(start)), Action::Forward(_)] => Some(*start),
        _ => None,
    });
    let mut starts: Vec<usize> = ends.collect();
    starts.reverse();
    if single_level(stages, &starts) != actions {
        return None;
    }
    let edges = edges(stages, &starts);
    let segments = edges.windows(2).map(|segment| {
        let last = segment[1].checked_sub(1)?;
        Some((StageId(segment[0]), StageId(last)))
    });
    segments.collect()
}

/// The actions as text, which tells apart what forwards keep: `forward`, `forward_keep` or `forward_tracked`.
pub fn written(actions: &[Action]) -> Vec<String> {
    // From the end: where each stage next runs forward, if it does before its backward.
    let mut next: HashMap<usize, usize> = HashMap::new();
    let mut written = Vec::with_capacity(actions.len());
    for (place, action) in actions.iter().enumerate().rev() {
        let Action::Forward(StageId(i)) = *action else {
            written.push(action.to_string());
            continue;
        };
        let again = next.insert(i, place);
        let made_again = i.checked_sub(1).and_then(|before| next.get(&before));
        written.push(match (again, made_again) {
            (None, _) => format!("forward_tracked {i}"),
            (Some(again), Some(&made)) if made < again => action.to_string(),
            _ => format!("forward_keep {i}"),
        });
    }
    written.reverse();
    written
}
