//! Real data on the host: loaders, splits, shuffled mini-batches. No backend and no tensors.
//!
//! - [`settings`]: where samples come from, as plain values
//! - [`dataset`]: what every source answers: how many samples, of which shape, and a batch of them
//! - [`text`], [`mnist`] (over [`idx`] files), [`cifar10`], [`synthetic`]: the sources
//! - [`identity`]: what tells a data set from another one of the same size
//! - [`split`]: opens a source and sets samples apart for evaluation
//! - [`permutation`] and [`batches`]: which samples make up which step
//! - [`error`]: what can be wrong, and whether the system or the content is to blame

pub mod batch;
pub mod batches;
pub mod cifar10;
pub mod dataset;
pub mod error;
mod file;
pub mod identity;
pub mod idx;
mod images;
pub mod mnist;
pub mod permutation;
pub mod settings;
pub mod split;
pub mod synthetic;
pub mod text;

pub use batches::{Shuffled, in_order};
pub use dataset::{Dataset, TargetKind};
pub use error::DataError;
pub use identity::Identity;
pub use split::{Split, open};
