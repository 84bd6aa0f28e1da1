//! Training: settings, optimizers, learning rates, the loop, what it records, and how it is resumed.

mod engine;
mod estimate;
mod fingerprint;
mod learning_rate;
pub mod loss;
pub mod optimizer;
pub mod record;
mod replace;
pub mod run_dir;
mod run_dir_error;
pub mod session;
pub mod settings;
mod snapshot;
pub mod timeline;
pub mod tracker;
mod trainer;
pub mod verify;

pub use engine::ExecutorKind;
pub use estimate::estimate;
pub use run_dir_error::RunDirError;
#[cfg(fuzzing)]
pub use snapshot::fuzz_snapshot;
pub use trainer::{StepReport, TrainError, Trainer, to_device};
