//! The trainer's data in snapshots: the model and the optimizer's state.

use std::io::{self, Write};

use rekindle::record::{Optimizer, RecordError};

use super::Trainer;
use crate::{
    file_error::FileError,
    model::tie::tie,
    optimizer::AnyOptimizer,
    progress::Progress,
    snapshot::{Snapshot, put},
    train_error::TrainError,
};

impl Trainer<'_> {
    /// Writes the model and the optimizer's state.
    ///
    /// Pending updates of statistics are merged first, as the next forward pass would do: no result changes.
    pub(crate) fn save(
        &self,
        out: &mut dyn Write,
        fingerprint: &str,
        progress: &Progress,
    ) -> io::Result<()> {
        let saved =
            TrainError::caught(|| put(out, fingerprint, progress, &self.model(), &self.optimizer));
        // The values were copied through pinned memory.
        self.meter.trim();
        saved.map_err(io::Error::other)?
    }

    /// Whether all ranks must take part in a snapshot.
    pub(crate) fn is_sharded(&self) -> bool {
        self.optimizer.shards().is_some()
    }

    /// Ends [`save`](Self::save) on rank 0, whether it failed or not; on other ranks, takes part in it.
    pub(crate) fn end_save(&self) -> Result<(), RecordError> {
        let ended = self.optimizer.end_save();
        self.meter.trim();
        Ok(ended?)
    }

    /// Resumes after `steps_done` steps, with an already [restored](Snapshot::restore) model.
    pub(crate) fn resumed(
        mut self,
        steps_done: usize,
        from: &mut Snapshot,
    ) -> Result<Self, FileError> {
        self.optimizer = self.optimizer.restored(from, &self.device)?;
        self.steps_done = steps_done;
        Ok(self)
    }

    /// Goes back to a snapshot of the same run.
    pub(crate) fn go_back(&mut self, to: &mut Snapshot) -> Result<(), FileError> {
        // Free the optimizer's state before the model's values and the earlier state are loaded.
        self.optimizer = AnyOptimizer::new(self.job.settings);
        self.model = to.restore(self.take_model())?;
        // Reading creates separate tensors for tied weights.
        tie(&mut self.model);
        self.optimizer = AnyOptimizer::new(self.job.settings).restored(to, &self.device)?;
        self.steps_done = to.progress().steps;
        Ok(())
    }
}
