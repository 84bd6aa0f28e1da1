//! Why a tape refuses to give gradients.

use std::fmt;

use thiserror::Error;

/// A part of the step, counted from 0 in the order in which it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TapePart {
    /// The loss.
    Loss,
    /// What a call of [`Tape::checkpoint`](crate::Tape::checkpoint) ran or was given.
    Checkpoint(usize),
    /// What a call of [`Tape::share`](crate::Tape::share) was given.
    Share(usize),
}

impl fmt::Display for TapePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss => f.write_str("the loss"),
            Self::Checkpoint(index) => write!(f, "checkpoint {index}"),
            Self::Share(index) => write!(f, "shared value {index}"),
        }
    }
}

/// A backward that would have given wrong gradients. None are given.
///
/// Parts are counted from 0. Statistics have moved as in any forward; parameters are as they were.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TapeError {
    /// The loss has several values.
    #[error(
        "the loss must be one number (shape [1]), but has shape [{elements}]: take its mean or sum"
    )]
    LossNotScalar {
        /// Number of values.
        elements: usize,
    },
    /// Nothing that wants a gradient led to the loss.
    #[error(
        "the loss does not depend on anything that wants a gradient: is it detached, or is every parameter frozen?"
    )]
    LossUntracked,
    /// A checkpoint runs on more than its input and its module.
    #[error(
        "{part} uses a value that wants a gradient and is neither its input nor a parameter of its module: \
         pass the value in as part of the input (a tuple will do)"
    )]
    Captured {
        /// The checkpoint.
        part: TapePart,
    },
    /// Two uses of a value need its gradient at different times.
    #[error(
        "{part} was made from a value that is also used elsewhere, after another checkpoint: pass that value through \
         `Tape::share` and use what it returns in all places"
    )]
    Shared {
        /// The part whose gradient came too late.
        part: TapePart,
    },
    /// The graph behind a value is gone.
    #[error(
        "{part} was made from a value whose graph is gone: another backward has used it up, or it began at a tensor of \
         your own that requires a gradient and was dropped, or at parameters outside the model that another backward \
         has reached. Compute the value anew, hold such tensors until `Tape::backward` returns, and give it all \
         modules (a tuple of modules is one)"
    )]
    Consumed {
        /// The part that was made from it.
        part: TapePart,
    },
    /// A value came from another tape's checkpoint.
    #[error(
        "{part} was made from the output of another tape's checkpoint: use one tape for the whole step, or detach \
         that output"
    )]
    OtherTape {
        /// The part that was made from it.
        part: TapePart,
    },
    /// burn's graph could not be read, so nothing can be promised.
    #[error(
        "the graph of {part} cannot be read, so its gradients cannot be checked: rekindle needs burn-autodiff 0.21.0"
    )]
    Unreadable {
        /// The part.
        part: TapePart,
    },
}
