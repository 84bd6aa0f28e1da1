//! Writes snapshots and the record during a run.

use std::time::Instant;

use super::{
    super::{Event, RunError},
    Session,
};
use crate::run_dir::SnapshotEvery;

impl Session<'_> {
    pub(super) fn snapshot_is_due(&self) -> Result<bool, RunError> {
        let due = match self.job.snapshot_every {
            SnapshotEvery::Steps(every) => self.trainer.steps_done().is_multiple_of(every),
            SnapshotEvery::Time(time) => self.tried.elapsed() >= time,
        };
        match self.trainer.is_sharded() {
            // Ranks have clocks of their own.
            true => self.job.ranks.said_by_first(due),
            false => Ok(due),
        }
    }

    /// Takes a snapshot, unless the state is not finite; then writes the record.
    pub(super) fn save(&mut self) -> Result<(), RunError> {
        self.tried = Instant::now();
        let (trainer, sharded) = (&self.trainer, self.trainer.is_sharded());
        if self.files.is_none() && !sharded {
            return Ok(());
        }
        let mut found = trainer.not_finite()?;
        if sharded {
            found = self.job.ranks.first(found)?;
        }
        if let Some(what) = found {
            (self.tell)(Event::SnapshotWithheld {
                step: trainer.steps_done(),
                what: &what,
            });
            self.write_record();
            return Ok(());
        }
        if let Some(files) = &mut self.files {
            let (fingerprint, progress) = (&self.fingerprint, &self.progress);
            files.take_snapshot(
                progress,
                |out| trainer.save(out, fingerprint, progress),
                self.tell,
            );
        }
        if sharded {
            trainer.end_save().map_err(RunError::from)?;
        }
        self.write_record();
        Ok(())
    }

    /// Writes the record of an unfinished run.
    pub(super) fn write_record(&mut self) {
        if self.files.is_none() {
            return;
        }
        let record = self.record(None, true);
        if let Some(files) = &mut self.files {
            files.write_record(&record, self.tell);
        }
    }

    /// Before an error ends the run, writes a snapshot for resuming, if the model is `whole`. The original error is
    /// reported even if files cannot be written.
    pub(super) fn ended(&mut self, error: RunError, whole: bool) -> RunError {
        let ranks = &self.job.ranks;
        let saves = match self.trainer.is_sharded() {
            // That takes all ranks.
            true => ranks.ends_with_others() && ranks.all(whole).unwrap_or(false),
            false => whole,
        };
        match saves {
            true => drop(self.save()),
            false => self.write_record(),
        }
        error
    }
}
