//! Models described by plain values, and built from them.
//!
//! The way from a description to something that trains:
//!
//! | module | from | to |
//! |---|---|---|
//! | [`spec`] | | a [`ModelSpec`](spec::ModelSpec): what the user wrote |
//! | [`layer_list`] | a list with groups that repeat | its layers |
//! | [`shape`] | a spec | the shape of every activation, or a [`ShapeError`](shape_error::ShapeError) that names the layer |
//! | [`stages`] | spec and shapes | the stages that a schedule keeps or recomputes |
//! | [`cost`] | spec, shapes and stages | bytes and multiply-adds at a batch size |
//! | [`tree`](mod@tree) | the same | the same for layers inside layers |
//! | [`largest`] | the same | the largest tensor that must be in one piece |
//! | [`kernels`] | | whose kernels compute, and what they keep for good |
//! | `tie` | stages | the same, with one weight for embedding and output |
//! | `passes` | layers of a stage | what its forward and backward hold for a while |
//! | [`value`] | | the activation that flows between the stages |
//! | [`build`](mod@build) | a spec and its stages | a [`Stage`](stage::Stage) for each, on a device |
//! | [`window`] | | sizes of convolution and pooling windows |

pub mod build;
pub mod cost;
mod infer;
mod init;
pub mod kernels;
pub mod largest;
pub mod layer_list;
mod mirror;
pub(crate) mod passes;
mod rules;
pub mod shape;
pub mod shape_error;
pub mod spec;
pub mod stage;
pub mod stages;
pub(crate) mod tie;
pub mod tree;
pub mod value;
pub mod window;
