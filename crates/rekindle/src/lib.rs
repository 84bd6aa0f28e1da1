//! Gradient checkpointing for burn: train sequential models in less memory, with the plain run's gradients.
//!
//! # Map
//!
//! | module | what it owns |
//! |---|---|
//! | [`record`](mod@record) | any training step: recorded, planned, run inside a budget |
//! | `learner` | recorded steps in burn-train's learner, with the feature of that name |
//! | [`activation`], [`layer`], [`sequential`] | what a chain is made of: values, stages, the whole |
//! | [`executor`] | runs one training step under any schedule |
//! | [`tape`] | checkpointed parts of a model that is no chain |
//! | [`seed`] | the same random numbers in every recompute |
//! | [`tied`] | layers that share their parameters |
//! | [`meter`] | memory in use and reserved, by phase |
//! | [`profile`] | the measured chain: bytes and seconds of each stage |
//! | [`counted`] | the chain that shapes foretell |
//! | [`model`] | models from plain descriptions: shapes, costs, modules |
//! | [`data`] | real data on the host: loaders, splits, shuffled mini-batches |
//! | [`device`] | where a run can be |
//! | [`dtype`] | f32, f16 and bf16 |
//! | [`train`] | optimizers, learning rates, the training loop and its record |
//!
//! Schedules, and the planners that find them, live in [`rekindle_plan`].

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod activation;
mod balanced;
pub mod counted;
pub mod data;
pub mod device;
pub mod dtype;
pub mod executor;
mod graph;
mod graph_ops;
pub mod layer;
#[cfg(feature = "learner")]
pub mod learner;
pub mod meter;
pub mod model;
pub mod profile;
mod quiet;
pub mod record;
pub mod seed;
pub mod sequential;
mod short_form;
pub mod size;
pub mod tape;
pub mod tied;
pub mod train;

pub use activation::Activation;
pub use dtype::Dtype;
pub use executor::{Executor, StepOutput, checkpoint_sequential};
pub use layer::Layer;
pub use record::{estimate, record};
pub use rekindle_alloc as alloc;
pub use rekindle_plan as plan;
pub use seed::StepSeed;
pub use sequential::Sequential;
pub use tape::Tape;
pub use tied::retie;

/// The README's program compiles and runs.
#[cfg(all(doctest, feature = "flex"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
