//! Training: settings, optimizers, learning rates, the loop, what it records, and how it is resumed.

mod engine;
mod estimate;
mod fingerprint;
mod history;
mod learning_rate;
mod lock;
pub mod loss;
pub mod optimizer;
pub mod record;
pub mod replace;
pub mod run_dir;
mod run_dir_error;
pub mod session;
pub mod settings;
mod snapshot;
mod snapshots;
mod step_times;
pub mod timeline;
pub mod tracker;
mod trainer;
pub mod verify;
mod weights;

pub use engine::ExecutorKind;
pub use estimate::estimate;
pub use run_dir_error::RunDirError;
pub use trainer::{StepReport, TrainError, Trainer, to_device};
pub use weights::WeightsError;
