//! Training from a description, within a memory budget: the library behind the program `rekindle`.
//!
//! # Map
//!
//! | module | what it owns |
//! |---|---|
//! | [`model`] | models from plain descriptions: shapes, costs, modules |
//! | [`data`] | real data on the host: loaders, splits, shuffled mini-batches |
//! | [`device`] | devices, and the memory available on them |
//! | [`Estimated`], [`fit`] | a step's memory and work, from shapes alone; whether it fits, and what would |
//! | [`settings`] | the settings of a run: batch, optimizer, learning rate, clipping |
//! | [`optimizer`], [`loss`] | burn's optimizers and losses by name |
//! | `loss_scale` | gradients of `f16` that would vanish |
//! | [`session`] | from settings to a run: a plan, its steps, what they came to |
//! | [`ranks`] | a training that several processes share: whose samples, what all decide together |
//! | [`record`], `measured` | what a run leaves behind: the JSON document of a run; its steps beside plain ones |
//! | `engine` | the recorded step that a run's loop runs |
//! | [`run_dir`], [`replace`] | a run's folder; files that are written whole |
//! | `snapshot`, `snapshots` | a snapshot's file, and those of a folder |
//! | `tensors` | files of tensors: snapshots and weights |
//! | `history`, `fingerprint`, `lock` | the other files of a run |
//! | [`FileError`], [`invalid`], [`NonFinite`] | what is wrong with a file, a folder or data; with a key of a config; with a loss |
//! | `run_error` | all that may end a run |
//! | [`shortage`] | why a step had too little memory, and the next budget; `session/run/replan.rs` plans again |
//! | [`timeline`], [`tracker`] | when memory was held, and by what |
//! | [`chunks`] | whether the loss can run in chunks |
//! | [`update`] | whether parameters can be updated in the backward pass |
//! | [`verify`](mod@verify) | compares a schedule's gradients with the plain run's |
//!
//! Recorded steps with their plans, and meters, are in [`rekindle`].

#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod checksum;
pub mod chunks;
pub mod data;
pub mod device;
mod engine;
mod estimate;
mod file_error;
mod fingerprint;
mod finite;
pub mod fit;
mod history;
pub mod invalid;
mod learning_rate;
mod lock;
pub mod loss;
mod loss_scale;
mod measured;
pub mod model;
mod nonfinite;
pub mod optimizer;
mod progress;
pub mod ranks;
pub mod record;
pub mod replace;
pub mod run_dir;
mod run_error;
pub mod session;
pub mod settings;
pub mod shortage;
mod snapshot;
mod snapshots;
mod step_times;
mod tensors;
pub mod timeline;
pub mod tracker;
pub mod update;
pub mod verify;

pub use estimate::{Estimated, kernels};
pub use file_error::FileError;
pub use nonfinite::NonFinite;
