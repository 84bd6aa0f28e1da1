//! Real data on the host: loaders, splits, shuffled mini-batches.

pub mod batch;
pub mod settings;
