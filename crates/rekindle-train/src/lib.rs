//! Training from a description, within a memory budget: the library behind the program `rekindle`.
//!
//! # Map
//!
//! | module | what it owns |
//! |---|---|
//! | [`model`] | models from plain descriptions: shapes, costs, modules |
//! | [`data`] | real data on the host: loaders, splits, shuffled mini-batches |
//! | [`device`] | devices, and the memory available on them |
//! | [`Estimated`] | a step's memory and work, from shapes alone |
//! | [`settings`] | the settings of a run: batch, optimizer, learning rate, clipping |
//! | [`optimizer`], [`loss`] | burn's optimizers and losses by name |
//! | [`optimizer_state`] | whether ranks divide the optimizer's state |
//! | [`loss_scale`] | loss scaling for `f16` |
//! | [`session`] | from settings to a run: a plan, its steps, their results |
//! | [`ranks`] | a training shared by several processes: their samples, and joint decisions |
//! | [`record`] | the JSON document of a run |
//! | [`run_dir`], [`replace`] | a run's folder: lock, history, snapshots, weights |
//! | [`shortage`] | steps that ran out of memory, and how the run continues |
//! | [`timeline`], [`tracker`] | memory over time, and the tensors that hold it |
//! | [`chunks`] | whether the loss can run in chunks |
//! | [`update`] | whether parameters can be updated in the backward pass |
//! | [`verify`](mod@verify) | compares a schedule's gradients with the plain run's |
//!
//! Recorded steps and meters are in [`rekindle`].

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod chunks;
pub mod data;
pub mod device;
mod engine;
mod estimate;
mod fingerprint;
mod finite;
mod history;
mod learning_rate;
mod lock;
pub mod loss;
pub mod loss_scale;
pub mod model;
mod nonfinite;
pub mod optimizer;
pub mod optimizer_state;
pub mod ranks;
pub mod record;
pub mod replace;
pub mod run_dir;
mod run_dir_error;
pub mod session;
pub mod settings;
mod sharded_state;
mod short_form;
pub mod shortage;
mod snapshot;
mod snapshots;
mod step_times;
pub mod timeline;
pub mod tracker;
mod train_error;
mod trainer;
pub mod update;
pub mod verify;
mod weights;

pub use estimate::{Estimated, kernels};
pub use nonfinite::NonFinite;
pub use run_dir_error::RunDirError;
#[cfg(fuzzing)]
pub use snapshot::fuzz_snapshot;
pub use train_error::TrainError;
pub use trainer::to_device;
pub use weights::WeightsError;
#[cfg(fuzzing)]
pub use weights::fuzz_weights;
