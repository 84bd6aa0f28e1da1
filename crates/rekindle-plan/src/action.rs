//! The actions of a schedule and their text form.
//!
//! With a_i the input of stage i, a_{i+1} its output, X_{i+1} the graph that a tracked forward of stage i records
//! (a_{i+1} lives inside it) and y_i the gradient of a_i:
//!
//! | action | reads | leaves |
//! |---|---|---|
//! | `forward i` | a_i or X_i | a_{i+1}; a stand-alone a_i is dropped (never a_0) |
//! | `forward_keep i` | a_i or X_i | a_i and a_{i+1} |
//! | `forward_tracked i` | a_i or X_i | a_i and X_{i+1}; not after `backward i` |
//! | `loss` | a_L or X_L | y_L; a stand-alone a_L is dropped |
//! | `backward i` | y_{i+1}, X_{i+1}, a_i or X_i | y_i and the stage's parameter gradients; y_{i+1}, X_{i+1} and a stand-alone a_i are freed (never a_0) |
//! | `optimize` | all parameter gradients | none of them |

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

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

/// One action of a training step; the [module documentation](self) lists what each reads and leaves.
///
/// [`Display`](fmt::Display) and [`FromStr`] use the one-line text form, as does serde.
///
/// ```
/// use rekindle_plan::{Action, StageId};
///
/// let action: Action = "forward_tracked 3".parse()?;
/// assert_eq!(action, Action::ForwardTracked(StageId(3)));
/// assert_eq!(action.to_string(), "forward_tracked 3");
/// # Ok::<(), rekindle_plan::ActionParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// "Run stage i without recording, and drop its input."
    Forward(StageId),
    /// "Run stage i without recording, and keep its input: it is a boundary."
    ForwardKeep(StageId),
    /// "Run stage i and record the graph that its backward pass needs."
    ForwardTracked(StageId),
    /// "Compute the loss and the gradient of the last output."
    Loss,
    /// "Run the backward pass of stage i."
    Backward(StageId),
    /// "Let the optimizer use all parameter gradients and free them."
    Optimize,
}

impl Action {
    /// The action's stage; `None` for the loss and the optimizer.
    pub fn stage(self) -> Option<StageId> {
        match self {
            Action::Forward(stage)
            | Action::ForwardKeep(stage)
            | Action::ForwardTracked(stage)
            | Action::Backward(stage) => Some(stage),
            Action::Loss | Action::Optimize => None,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Forward(stage) => write!(f, "forward {stage}"),
            Action::ForwardKeep(stage) => write!(f, "forward_keep {stage}"),
            Action::ForwardTracked(stage) => write!(f, "forward_tracked {stage}"),
            Action::Loss => f.write_str("loss"),
            Action::Backward(stage) => write!(f, "backward {stage}"),
            Action::Optimize => f.write_str("optimize"),
        }
    }
}

/// A text that is not an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not an action: expected `forward I`, `forward_keep I`, `forward_tracked I`, `loss`, `backward I` or `optimize`"
)]
pub struct ActionParseError {
    /// The text as it was given.
    pub text: String,
}

impl FromStr for Action {
    type Err = ActionParseError;

    fn from_str(text: &str) -> Result<Action, ActionParseError> {
        let error = || ActionParseError {
            text: text.to_owned(),
        };
        let number = |word: &str| {
            // `usize::from_str` takes "+3", which would not round-trip.
            if word.starts_with('+') {
                Err(error())
            } else {
                word.parse().map_err(|_| error())
            }
        };
        let mut words = text.split(' ');
        let name = words.next().unwrap_or_default();
        let rest: Vec<&str> = words.collect();
        match (name, rest.as_slice()) {
            ("forward", [stage]) => Ok(Action::Forward(StageId(number(stage)?))),
            ("forward_keep", [stage]) => Ok(Action::ForwardKeep(StageId(number(stage)?))),
            ("forward_tracked", [stage]) => Ok(Action::ForwardTracked(StageId(number(stage)?))),
            ("loss", []) => Ok(Action::Loss),
            ("backward", [stage]) => Ok(Action::Backward(StageId(number(stage)?))),
            ("optimize", []) => Ok(Action::Optimize),
            _ => Err(error()),
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
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::Action;

    #[test]
    fn text_forms_round_trip() {
        for text in [
            "forward 3",
            "forward_keep 0",
            "forward_tracked 3",
            "loss",
            "backward 3",
            "optimize",
        ] {
            assert_eq!(text.parse::<Action>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "forward",
            "forward -1",
            "forward +1",
            "forward 1 2",
            "Loss",
            "loss 1",
            "forward_tracked 1 2",
            "jump 3",
        ] {
            assert!(text.parse::<Action>().is_err(), "{text:?}");
        }
    }
}
