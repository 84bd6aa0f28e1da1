//! Real data on the host: loaders, splits, shuffled mini-batches. No backend and no tensors.
//!
//! - [`settings`]: where samples come from, as plain values
//! - [`dataset`]: the interface of every source: number of samples, their shape, and batches
//! - [`text`], `images` (MNIST and CIFAR-10), [`synthetic`]: the sources
//! - [`split`]: opens a source and sets samples apart for evaluation
//! - [`batches`]: the samples of each step; `ahead` builds the next one meanwhile
//! - `error`: what may be wrong with a source; `file`: files that are read within bounds

pub(crate) mod ahead;
pub mod batch;
pub mod batches;
pub mod dataset;
mod error;
mod file;
mod images;
pub mod settings;
pub mod split;
pub mod synthetic;
pub mod text;

pub use batches::{Shuffled, in_order};
pub use dataset::{Dataset, TargetKind};
pub use split::{Split, open};
