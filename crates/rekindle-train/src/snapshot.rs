//! A run's state in one file, written and read one tensor at a time.
//!
//! ```text
//! "rekindle-snapshot/3\n"
//! fingerprint, steps done, first and last loss, last and best evaluation
//! count, then an id and a tensor for each parameter and statistic, in the model's order
//! count, then an id, a rank, named tensors and named scalars for each parameter that has optimizer state
//! where the loss scale is dynamic: the scale, and steps since it changed
//! "end\n", CRC-32 of everything before
//! ```
//! Everything between the start and end marks is bincode, at full precision. Ids of parameters are kept, because the
//! optimizer finds its state by them; statistics get new ids, which are not used.
//!
//! Memory: on the host, copies of one parameter's optimizer state, and another copy of one tensor while burn aligns it:
//! two times the largest parameter for SGD with momentum, three times for Adam, and one more with master weights. There
//! are no gradients when a snapshot is taken, so this stays below the optimizer's own peak if no parameter is more than
//! a third of the model (a sixth with master weights). Cost: the file is read twice, so that damage is detected before
//! the content is used.

mod reader;
#[cfg(test)]
mod tests;
mod whole;
mod writer;

use std::{io::Write, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    record::{EvalRecord, StepRecord},
    replace::replace,
    run_dir_error::RunDirError,
};
pub(crate) use reader::Snapshot;
pub(crate) use writer::{SnapshotWriter, flattened};

const START: &str = "rekindle-snapshot/3\n";
/// The starts of files of earlier versions: the first with burn 0.21, the second with the whole history inside.
const EARLIER_STARTS: [&str; 2] = ["rekindle-snapshot/1\n", "rekindle-snapshot/2\n"];
const END: &[u8; 4] = b"end\n";
/// Bytes of [`END`] and of the checksum.
const TRAILER: u64 = 8;

/// Names inside a parameter's state have no prefix: the id is stored separately.
const STATE_PREFIX: &str = "";

/// What a run has done, apart from its tensors. It does not grow with the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// Steps that are done.
    pub(super) steps: usize,
    pub(super) first_loss: f64,
    pub(super) last_loss: f64,
    /// The last evaluation.
    pub(super) evaluation: Option<EvalRecord>,
    /// The evaluation with the smallest loss.
    pub(super) best: Option<EvalRecord>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            steps: 0,
            first_loss: f64::NAN,
            last_loss: f64::NAN,
            evaluation: None,
            best: None,
        }
    }
}

impl Progress {
    pub(super) fn stepped(&mut self, step: &StepRecord) {
        if self.steps == 0 {
            self.first_loss = step.loss;
        }
        self.steps = step.step;
        self.last_loss = step.loss;
    }

    /// Adds an evaluation, and returns whether it has the smallest loss so far.
    pub(super) fn evaluated(&mut self, evaluation: &EvalRecord) -> bool {
        self.evaluation = Some(evaluation.clone());
        let bound = self.best.as_ref().map_or(f64::INFINITY, |best| best.loss);
        let better = evaluation.loss < bound;
        if better {
            self.best = Some(evaluation.clone());
        }
        better
    }
}

/// Replaces the snapshot at `path`; `tensors` writes the model and the optimizer, in this order.
pub(super) fn write(
    path: &Path,
    fingerprint: &str,
    progress: &Progress,
    tensors: impl FnOnce(&mut SnapshotWriter<'_>) -> std::io::Result<()>,
) -> Result<(), RunDirError> {
    replace(path, |out| {
        let mut writer = SnapshotWriter {
            out,
            checksum: crc32fast::Hasher::new(),
        };
        writer.write_all(START.as_bytes())?;
        writer.put(fingerprint)?;
        writer.put(progress)?;
        tensors(&mut writer)?;
        writer.write_all(END)?;
        let checksum = writer.checksum.finalize();
        out.write_all(&checksum.to_le_bytes())
    })
    .map_err(RunDirError::refused(path, "written"))
}

/// Writes a snapshot with `body` between its marks, and the checksum that belongs to it.
#[cfg(any(test, fuzzing))]
fn crafted(path: &Path, body: &[u8]) -> std::io::Result<()> {
    let mut bytes = [START.as_bytes(), body, END].concat();
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    std::fs::write(path, bytes)
}

/// Reads a snapshot with this body into a small model, at a path that it may write to.
///
/// # Errors
///
/// The error of the body.
#[cfg(fuzzing)]
pub fn fuzz_snapshot(path: &Path, body: &[u8]) -> Result<(), RunDirError> {
    crafted(path, body).map_err(RunDirError::refused(path, "written"))?;
    let device = burn::tensor::Device::flex().autodiff();
    let mut snapshot = Snapshot::open(path)?;
    snapshot.restore(burn::nn::LinearConfig::new(3, 2).init(&device))?;
    let settings = super::settings::TrainSettings {
        optimizer: super::settings::OptimizerSettings::Sgd {
            momentum: 0.9,
            weight_decay: 0.0,
        },
        ..Default::default()
    };
    let optimizer = super::optimizer::AnyOptimizer::new(&settings);
    optimizer.restored(&mut snapshot, &device).map(drop)
}

#[cfg(test)]
#[path = "../../rekindle-plan/tests/support/mutated.rs"]
mod mutated;
