//! Gradient checkpointing for burn.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod activation;
pub mod data;
pub mod layer;
pub mod model;
pub mod train;
