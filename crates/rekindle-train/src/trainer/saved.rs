//! What snapshots hold of a trainer: the model and the optimizer's state.

use std::io;

use rekindle::record::{Optimizer, RecordError};

use super::Trainer;
use crate::{
    model::tie::tie,
    optimizer::AnyOptimizer,
    run_dir_error::RunDirError,
    snapshot::{Snapshot, SnapshotWriter},
    train_error::TrainError,
};

impl Trainer {
    /// Writes the model and the optimizer's state.
    ///
    /// Updates of statistics that wait are merged first, as the next forward would: nothing that is computed changes.
    pub(crate) fn save(&self, to: &mut SnapshotWriter<'_>) -> io::Result<()> {
        let saved = TrainError::caught(|| {
            to.model(&self.model())?;
            self.optimizer.save(to)
        });
        // The values were copied by way of pinned memory.
        self.meter.trim();
        saved.map_err(io::Error::other)?
    }

    /// Whether a snapshot takes all ranks.
    pub(crate) fn is_sharded(&self) -> bool {
        self.optimizer.shards().is_some()
    }

    /// Ends [`save`](Self::save) on rank 0, which it may have failed or not; on other ranks, takes part in it.
    pub(crate) fn end_save(&self) -> Result<(), RecordError> {
        let ended = self.optimizer.end_save();
        self.meter.trim();
        Ok(ended?)
    }

    /// Goes on after `steps_done` steps, with a model that was [restored](Snapshot::restore) already.
    pub(crate) fn resumed(
        mut self,
        steps_done: usize,
        from: &mut Snapshot,
    ) -> Result<Self, RunDirError> {
        self.optimizer = self.optimizer.restored(from, &self.device)?;
        self.steps_done = steps_done;
        Ok(self)
    }

    /// Goes back to a snapshot of the same run.
    pub(crate) fn go_back(&mut self, to: &mut Snapshot) -> Result<(), RunDirError> {
        // Its state goes before the model's values and the earlier state come.
        self.optimizer = AnyOptimizer::new(&self.settings);
        self.model = to.restore(self.take_model())?;
        // What was read is a tensor of its own in each place.
        tie(&mut self.model);
        self.optimizer = AnyOptimizer::new(&self.settings).restored(to, &self.device)?;
        self.steps_done = to.progress().steps;
        Ok(())
    }
}
