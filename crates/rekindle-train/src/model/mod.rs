//! Models described by plain values, and built from them.
//!
//! The steps from a description to a trainable model:
//!
//! | module | what it owns |
//! |---|---|
//! | [`spec`] | a [`ModelSpec`](spec::ModelSpec): what the user wrote |
//! | [`build`](mod@build) | each layer in turn: its shape, or a [`ShapeError`](shape::ShapeError) that names it, and its module |
//! | `kinds` | what each kind of layer needs and makes: output, parameters, module |
//! | `maker`, `init`, `mirror` | the parameters' first values |
//! | [`shape`] | the shape of every activation |
//! | [`stages`] | the stages that a schedule keeps or recomputes |
//! | [`stage`] | a [`Stage`](stage::Stage) and its modules' forward |
//! | [`value`] | the activation that flows between the stages |
//! | `window` | sizes of convolution and pooling windows |

pub mod build;
mod init;
mod kinds;
mod maker;
mod mirror;
mod rules;
pub mod shape;
pub mod spec;
pub mod stage;
pub mod stages;
pub mod value;
mod window;
