//! Ways into what reads files, for fuzzing.

use std::path::Path;

use burn::{nn::LinearConfig, tensor::Device};

use crate::{
    FileError,
    optimizer::AnyOptimizer,
    settings::{OptimizerKind, TrainSettings},
    snapshot::{Snapshot, crafted},
    tensors::Tensors,
};

/// Reads a snapshot with this body into a small model, at a path that it may write to.
///
/// # Errors
///
/// What is wrong with the body.
pub fn fuzz_snapshot(path: &Path, body: &[u8]) -> Result<(), FileError> {
    crafted(path, body).map_err(FileError::refused(path, "written"))?;
    let device = Device::flex().autodiff();
    let mut snapshot = Snapshot::open(path)?;
    snapshot.restore(LinearConfig::new(3, 2).init(&device))?;
    let settings = TrainSettings {
        optimizer: OptimizerKind::Sgd,
        momentum: 0.9,
        ..Default::default()
    };
    let optimizer = AnyOptimizer::new(&settings);
    optimizer.restored(&mut snapshot, &device).map(drop)
}

/// Reads weights into a small model.
///
/// # Errors
///
/// What is wrong with the file.
pub fn fuzz_weights(path: &Path) -> Result<(), FileError> {
    let device = Device::flex().autodiff();
    let mut weights = Tensors::open(path)?;
    weights
        .restore(LinearConfig::new(3, 2).init(&device))
        .map(drop)
}
