//! The actions of a training step over stages.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// The number of a stage, from 0. In a chain of L stages the loss counts as stage L.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct StageId(pub usize);

impl fmt::Display for StageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

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
