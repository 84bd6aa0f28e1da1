//! Models described by plain values, and built from them.
//!
//! The way from a description to something that trains:
//!
//! | module | from | to |
//! |---|---|---|
//! | [`spec`] | | a [`ModelSpec`](spec::ModelSpec): what the user wrote |
//! | [`shape`] | a spec | the shape of every activation, or a [`ShapeError`](shape_error::ShapeError) that names the layer |
//! | [`window`] | | sizes of convolution and pooling windows |

mod rules;
pub mod shape;
pub mod shape_error;
pub mod spec;
pub mod window;
