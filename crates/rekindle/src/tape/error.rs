//! Errors of a tape.

use thiserror::Error;

/// The backward pass would give wrong gradients, so it gives none.
///
/// Checkpoints are counted from 0. Statistics have been updated as by any forward pass; parameters are unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TapeError {
    /// The loss has more than one value.
    #[error(
        "the loss must be one number (shape [1]), but has shape [{elements}]: take its mean or sum"
    )]
    LossNotScalar {
        /// Number of values.
        elements: usize,
    },
    /// The loss does not depend on anything that requires a gradient.
    #[error(
        "the loss does not depend on anything that requires a gradient: is it detached, or is every parameter frozen?"
    )]
    LossUntracked,
    /// A checkpoint uses a tracked value besides its input and its module.
    #[error(
        "checkpoint {checkpoint} uses a value that requires a gradient and is neither its input nor a parameter of its \
         module: pass the value in as part of the input (a tuple will do)"
    )]
    Captured {
        /// The checkpoint.
        checkpoint: usize,
    },
    /// The tape was made in a rayon task, in the middle of a stage or checkpoint that draws random numbers.
    #[error(
        "the tape was made while another step draws random numbers on the same rayon thread: run steps on threads of their \
         own, not in rayon tasks"
    )]
    Interrupts,
    /// The graph of a value was already consumed.
    #[error(
        "the loss was made from a value whose graph another backward has used: compute the value again, or detach it"
    )]
    Consumed,
    /// A value is the output of another tape's checkpoint.
    #[error(
        "the loss was made from the output of another tape's checkpoint: use one tape for the whole step, or detach \
         that output"
    )]
    OtherTape,
    /// An input of a checkpoint had no gradient, and burn's graph, which is needed to find the affected parameters,
    /// could not be read.
    #[error(
        "a checkpoint's input has no gradient, and what that means for values before it cannot be told: rekindle needs \
         burn-autodiff 0.22.1"
    )]
    Unreadable,
    /// burn's backward pass or a recomputed layer panicked, or the device rejected a kernel.
    #[error("the backward pass failed: {panic}")]
    Burn {
        /// The panic's message.
        panic: String,
    },
}
