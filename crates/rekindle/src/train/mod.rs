//! Training: settings, optimizers, learning rates, the loop, and what it records.

pub mod settings;
