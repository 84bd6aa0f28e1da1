//! Models described by plain values, and built from them.
//!
//! The steps from a description to a trainable model:
//!
//! | module | from | to |
//! |---|---|---|
//! | [`spec`] | | a [`ModelSpec`](spec::ModelSpec): what the user wrote |
//! | [`shape`] | a spec | the shape of every activation, or a [`ShapeError`](shape_error::ShapeError) that names the layer |
//! | [`stages`] | spec and shapes | the stages that a schedule keeps or recomputes |
//! | `tie` | stages | the same, with one weight for embedding and output |
//! | [`value`] | | the activation that flows between the stages |
//! | [`build`](mod@build) | a spec and its stages | a [`Stage`](stage::Stage) for each, on a device |
//! | [`window`] | | sizes of convolution and pooling windows |

pub mod build;
mod infer;
mod init;
mod mirror;
mod rules;
pub mod shape;
pub mod shape_error;
pub mod spec;
pub mod stage;
pub mod stages;
pub(crate) mod tie;
pub mod value;
pub mod window;
