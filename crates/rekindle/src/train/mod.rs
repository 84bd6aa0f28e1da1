//! Training: settings, optimizers, learning rates, the loop, and what it records.

mod learning_rate;
pub mod loss;
pub mod optimizer;
pub mod settings;
