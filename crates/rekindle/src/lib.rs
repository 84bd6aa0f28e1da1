//! Gradient checkpointing for burn: train models in less memory, with the same gradients as the plain run.
//!
//! # Map
//!
//! | module | what it owns |
//! |---|---|
//! | [`record`](mod@record) | any training step: recorded, planned, run within a budget |
//! | [`accumulate`] | parts of a batch, and the mean of their losses and gradients |
//! | [`reduce`] | sums over ranks: one training step on many devices |
//! | `mpi` | ranks started by `mpirun` (feature `mpi`) |
//! | `learner` | recorded steps in burn-train's learner (feature `learner`) |
//! | [`tensor_tree`] | values made of tensors: batches, and what flows between stages |
//! | [`layer`], [`sequential`] | parts of a chain: stages, the whole chain |
//! | [`checkpoint`] | `checkpoint_sequential`: the idea in its shortest form, for layers that read values |
//! | [`seed`] | the seeds of a step's random numbers |
//! | [`synchronised_batch_norm`] | batch normalisation over the samples of all ranks |
//! | [`tied`] | layers that share their parameters |
//! | [`cross_entropy`] | the loss over a large vocabulary, without the logits |
//! | [`meter`] | memory in use and reserved, by phase |
//! | [`dtype`] | f32, f16 and bf16 |
//! | [`master_weights`] | optimizers for f16 and bf16 models that keep parameters in f32 |
//! | [`Sharded`] | optimizers whose state is divided among ranks |
//! | [`size`] | sizes as people write them |
//! | `known_gradient`, `quiet`, `statistics`, `step_result` | operations whose gradient is ours, panics as results, running statistics, what a step's closure returns |
//! | `cubecl` | settings of GPU backends (with their features) |
//!
//! Schedules and planners are in [`rekindle_plan`]; models, data and runs that are described by a config are in
//! `rekindle-train`.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod accumulate;
pub mod checkpoint;
pub mod cross_entropy;
#[cfg(feature = "cubecl")]
pub mod cubecl;
pub mod dtype;
mod known_gradient;
pub mod layer;
#[cfg(feature = "learner")]
pub mod learner;
pub mod master_weights;
pub mod meter;
mod quiet;
pub mod record;
pub mod reduce;
pub mod seed;
pub mod sequential;
pub mod size;
mod statistics;
mod step_result;
pub mod tensor_tree;
pub mod tied;

pub use checkpoint::checkpoint_sequential;
pub use cross_entropy::ChunkedCrossEntropy;
pub use dtype::Dtype;
pub use layer::Layer;
pub use master_weights::MasterWeights;
pub use record::{estimate, record};
#[cfg(feature = "mpi")]
pub use reduce::mpi;
pub use reduce::{Sharded, synchronised_batch_norm};
pub use rekindle_alloc as alloc;
pub use rekindle_plan as plan;
pub use seed::StepSeed;
pub use sequential::Sequential;
pub use statistics::reused;
pub use step_result::StepResult;
pub use tensor_tree::TensorTree;
pub use tied::retie;

/// The README's program compiles and runs.
#[cfg(all(doctest, feature = "flex"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
