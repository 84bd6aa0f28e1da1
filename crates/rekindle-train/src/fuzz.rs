//! Ways into what reads files, for fuzzing.

use std::path::Path;

use burn::{nn::LinearConfig, tensor::Device};

use crate::{
    RunDirError, WeightsError,
    optimizer::AnyOptimizer,
    settings::{OptimizerKind, TrainSettings},
    snapshot::{Snapshot, crafted},
    weights,
};

/// Reads a snapshot with this body into a small model, at a path that it may write to.
///
/// # Errors
///
/// What is wrong with the body.
pub fn fuzz_snapshot(path: &Path, body: &[u8]) -> Result<(), RunDirError> {
    crafted(path, body).map_err(RunDirError::refused(path, "written"))?;
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
pub fn fuzz_weights(path: &Path) -> Result<(), WeightsError> {
    let device = Device::flex().autodiff();
    weights::read(LinearConfig::new(3, 2).init(&device), path).map(drop)
}
