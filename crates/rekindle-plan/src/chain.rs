//! The chain: the costs of each stage of a model, measured or estimated.
//!
//! Stage i = 0..L-1 maps a_i to a_{i+1}; the loss counts as stage L. In the formulas of this crate, x_i is the size of
//! a_i, X_{i+1} the bytes that a tracked forward of stage i keeps (with its output, without its input), f_i and F_i the
//! temporary bytes of an untracked and a tracked forward, b_i those of the backward pass, g_i the bytes of the
//! parameter gradients, and y_i the size of the gradient of a_i: y_i = x_i, but y_0 = 0 unless `input_grad`.
//!
//! The file format is JSON, read by [`Chain::from_json`] and written by [`Chain::to_json`].

mod costs;
mod file;
mod validate;

pub use costs::{Chain, LossCost, OptimizerCost, Stage};
pub use validate::{ChainError, FORMAT};
