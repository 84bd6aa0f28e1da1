//! Training: settings, optimizers, learning rates, the loop, and what it records.

mod learning_rate;
pub mod loss;
pub mod optimizer;
pub mod record;
pub mod session;
pub mod settings;
mod trainer;
pub mod verify;

pub use trainer::{StepReport, TrainError, Trainer, to_device};
