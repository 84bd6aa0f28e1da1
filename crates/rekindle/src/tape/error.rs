//! Why a tape refuses to give gradients.

use thiserror::Error;

/// A backward that would have given wrong gradients. None are given.
///
/// Checkpoints are counted from 0. Statistics have moved as in any forward; parameters are as they were.
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
        "the loss does not depend on anything that requires a gradient: is it detached, or is every parameter frozen?"
    )]
    LossUntracked,
    /// A checkpoint runs on more than its input and its module.
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
    /// The graph behind a value is gone.
    #[error(
        "the loss was made from a value whose graph another backward has used: compute the value again, or detach it"
    )]
    Consumed,
    /// A value came from another tape's checkpoint.
    #[error(
        "the loss was made from the output of another tape's checkpoint: use one tape for the whole step, or detach \
         that output"
    )]
    OtherTape,
    /// An input of a checkpoint had no gradient, and burn's graph, which tells what follows from that, could not be read.
    #[error(
        "a checkpoint's input has no gradient, and what that means for values before it cannot be told: rekindle needs \
         burn-autodiff 0.22.1"
    )]
    Unreadable,
    /// burn's backward, or a layer that ran again in it, panicked, or the device refused a kernel.
    #[error("the backward pass failed: {panic}")]
    Burn {
        /// What the panic said.
        panic: String,
    },
}
