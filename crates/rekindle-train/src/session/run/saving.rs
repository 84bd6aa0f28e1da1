//! Writes snapshots and the record during a run.

use std::{io, time::Instant};

use burn::module::Module;

use super::{
    super::{Event, RunError},
    Session,
};
use crate::{finite, run_dir::SnapshotEvery, snapshot};
use rekindle::record::{Optimizer, RecordError};

impl Session<'_> {
    pub(super) fn snapshot_is_due(&self) -> Result<bool, RunError> {
        let due = match self.job.snapshot_every {
            SnapshotEvery::Steps(every) => self.progress.steps.is_multiple_of(every),
            SnapshotEvery::Time(time) => self.tried.elapsed() >= time,
        };
        match self.is_sharded() {
            // Ranks have clocks of their own.
            true => Ok(self.job.ranks.gathered(due).map_err(RecordError::from)?[0]),
            false => Ok(due),
        }
    }

    /// Takes a snapshot, unless the state is not finite; then writes the record.
    pub(super) fn save(&mut self) -> Result<(), RunError> {
        self.tried = Instant::now();
        let sharded = self.is_sharded();
        if self.files.is_none() && !sharded {
            return Ok(());
        }
        let found = match sharded {
            true => self.not_finite_anywhere()?,
            false => self.not_finite()?,
        };
        if let Some(what) = found {
            (self.tell)(Event::Noticed(&format!(
                "no snapshot after step {}: {what} is not finite; the previous one is kept",
                self.progress.steps
            )));
            self.write_record();
            return Ok(());
        }
        if let Some(files) = &mut self.files {
            // Pending updates of statistics are merged first, as the next forward pass would do: no result changes.
            let (fingerprint, progress) = (&self.fingerprint, &self.progress);
            files.take_snapshot(
                progress,
                |out| {
                    let saved = RunError::caught(|| {
                        let model = self.model.valid();
                        snapshot::put(out, fingerprint, progress, &model, &self.optimizer)
                    });
                    // The values were copied through pinned memory.
                    self.meter.trim();
                    saved.map_err(io::Error::other)?
                },
                self.tell,
            );
        }
        if sharded {
            // On rank 0 whether it failed or not; the others take part in it.
            let ended = self.optimizer.end_save();
            self.meter.trim();
            ended.map_err(RecordError::from)?;
        }
        self.write_record();
        Ok(())
    }

    /// Whether all ranks must take part in a snapshot.
    fn is_sharded(&self) -> bool {
        self.optimizer.shards().is_some()
    }

    /// The first of this rank's parameters, running statistics and optimizer state that is not finite, if one is not.
    fn not_finite(&self) -> Result<Option<String>, RunError> {
        if let Some(path) = finite::first(&self.model.valid(), None)? {
            return Ok(Some(format!("`{path}`")));
        }
        let state = RunError::caught(|| self.optimizer.not_finite())?;
        Ok(state.map(|id| format!("the optimizer's state of parameter {id}")))
    }

    /// The same of all ranks, which call it together: running statistics are each rank's own.
    pub(super) fn not_finite_anywhere(&self) -> Result<Option<String>, RunError> {
        let all = self.job.ranks.gathered(self.not_finite()?);
        Ok(all.map_err(RecordError::from)?.into_iter().flatten().next())
    }

    /// Writes the record of an unfinished run.
    pub(super) fn write_record(&mut self) {
        if self.files.is_none() {
            return;
        }
        let record = self.record(true);
        if let Some(files) = &mut self.files {
            files.write_record(&record, self.tell);
        }
    }

    /// Before an error ends the run, writes a snapshot for resuming, if the model is `whole`. The original error is
    /// reported even if files cannot be written.
    pub(super) fn ended(&mut self, error: RunError, whole: bool) -> RunError {
        let ranks = &self.job.ranks;
        let saves = match self.is_sharded() {
            // That takes all ranks.
            true => {
                ranks.ends_with_others()
                    && ranks.gathered(whole).is_ok_and(|all| !all.contains(&false))
            }
            false => whole,
        };
        match saves {
            true => drop(self.save()),
            false => self.write_record(),
        }
        error
    }
}
