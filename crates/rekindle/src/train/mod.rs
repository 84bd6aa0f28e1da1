//! Training: settings, optimizers, learning rates, the loop, what it records, and how it is resumed.

mod engine;
mod estimate;
mod fingerprint;
mod history;
mod learning_rate;
mod lock;
pub mod loss;
mod nonfinite;
pub mod optimizer;
pub mod record;
pub mod replace;
pub mod run_dir;
mod run_dir_error;
pub mod session;
pub mod settings;
pub mod shortage;
mod snapshot;
mod snapshots;
mod statistics;
mod step_times;
pub mod timeline;
pub mod tracker;
mod trainer;
pub mod update;
pub mod verify;
mod weights;

pub use engine::ExecutorKind;
pub use estimate::estimate;
pub use nonfinite::NonFinite;
pub use run_dir_error::RunDirError;
#[cfg(fuzzing)]
pub use snapshot::fuzz_snapshot;
pub use trainer::{StepReport, TrainError, Trainer, to_device};
pub use weights::WeightsError;
#[cfg(fuzzing)]
pub use weights::fuzz_weights;
