//! Training on several ranks: the samples of each rank, and joint decisions.
//!
//! [`Ranks`] goes with a [`Job`](crate::session::Job). The default is one rank alone, which asks nobody and trains as if this
//! module were not there. Gradients and losses are summed inside recorded steps (see [`rekindle::reduce`]). Besides:
//!
//! - The batch of a step is the whole batch, with its samples in the same order as for a single rank; rank r of n takes
//!   [`part`](rekindle::reduce::part) r of them, and its loss is weighted by their share.
//! - Once per step, before the update, ranks exchange whether a rank failed, whether a rank was asked to stop, and the
//!   numbers of correct predictions. An evaluation ends in the same way.
//! - Where one rank alone can fail, all wait for each other: either all continue, or all end, with their own errors or
//!   with [`RunError::OtherRank`]. An error of one rank that is not exchanged ends its process, and `mpirun` ends the
//!   others.
//! - Only rank 0 has a folder, initial weights and a record. Its parameters, or its snapshot, are sent to all ranks.

mod tally;

use std::{
    fs::File,
    io::{Read, Write},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bincode::config;
use rekindle::{
    record::RecordError,
    reduce::{self, ReduceError, Reducer},
};
use rekindle_plan::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tempfile::NamedTempFile;

use crate::{
    FileError, record::RankRecord, session::RunError, settings::TrainSettings, snapshot::Snapshot,
};
pub(crate) use tally::Tally;

/// Bytes of a snapshot that are sent at one time.
const PIECE: usize = 256 << 10;

/// One rank's view of the ranks that train together. Clones are the same rank.
#[derive(Clone)]
pub struct Ranks {
    reducer: Reducer,
    asked_to_stop: fn() -> bool,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Whether any rank was asked to stop, as of the last exchange.
    stopping: bool,
    /// Whether all ranks are about to end.
    ending: bool,
    own: RankRecord,
    all: Vec<RankRecord>,
}

/// What a rank tells the others.
#[derive(Serialize, Deserialize)]
struct Said {
    /// `None` if it failed.
    tally: Option<Tally>,
    stop: bool,
    record: RankRecord,
}

/// One rank alone.
impl Default for Ranks {
    fn default() -> Self {
        Self::new(reduce::in_process(1).remove(0), || false)
    }
}

impl Ranks {
    /// The ranks that `reducer` connects. `asked_to_stop` returns whether this rank was asked to stop cleanly: then all
    /// ranks stop after the same step.
    #[must_use]
    pub fn new(reducer: Reducer, asked_to_stop: fn() -> bool) -> Self {
        Self {
            reducer,
            asked_to_stop,
            state: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reducer that connects this rank with the others; `None` if there are none.
    pub(crate) fn reducer(&self) -> Option<Reducer> {
        (!self.is_alone()).then(|| self.reducer.clone())
    }

    /// This rank's number, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.reducer.rank()
    }

    /// How many ranks there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.reducer.ranks()
    }

    /// Whether this is the only rank.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.count() == 1
    }

    /// This rank's part of `samples` samples: all of them if it is the only rank.
    #[must_use]
    pub fn part(&self, samples: usize) -> Range<usize> {
        reduce::part(samples, self.rank(), self.count())
    }

    /// Each rank's own result if all ranks have succeeded. If a rank has failed, the others get `other`, and all are
    /// about to [end](Self::ends_with_others).
    ///
    /// # Errors
    ///
    /// If ranks do not answer.
    pub fn settle<T, E>(&self, own: Result<T, E>, other: E) -> Result<Result<T, E>, ReduceError> {
        let all = self.gathered(own.is_ok())?.into_iter().all(|one| one);
        self.state().ending = !all;
        Ok(own.and_then(|value| if all { Ok(value) } else { Err(other) }))
    }

    /// The values of all ranks, by rank.
    ///
    /// # Errors
    ///
    /// If ranks do not answer.
    pub fn gathered<T: Serialize + DeserializeOwned>(&self, own: T) -> Result<Vec<T>, ReduceError> {
        if self.is_alone() {
            return Ok(vec![own]);
        }
        let wrong = |error: &dyn std::fmt::Display| ReduceError::Failed(error.to_string());
        let own = bincode::serde::encode_to_vec(own, config::standard());
        let own = own.map_err(|error| wrong(&error))?;
        let all = self.reducer.all_gather(own).wait()?;
        let all = all.iter().map(|bytes| {
            let read = bincode::serde::decode_from_slice(bytes, config::standard());
            read.map(|(value, _)| value).map_err(|error| wrong(&error))
        });
        all.collect()
    }

    /// Whether all ranks are ending and know it of each other: they may still communicate.
    #[must_use]
    pub fn ends_with_others(&self) -> bool {
        self.state().ending
    }

    /// Returns each rank's own result if all ranks have succeeded, else an error.
    pub(crate) fn settled<T>(&self, own: Result<T, RunError>) -> Result<T, RunError> {
        if own.as_ref().is_err_and(RunError::is_of_network) {
            return own;
        }
        let own = own.map_err(|error| match error.is_of_another_rank() {
            true => RunError::OtherRank,
            false => error,
        });
        let settled = self.settle(own, RunError::OtherRank);
        settled.map_err(RecordError::from)?
    }

    /// The run is done, on all ranks.
    pub(crate) fn finished(&self) {
        self.state().ending = true;
    }

    /// Checks that the training can be shared.
    pub(crate) fn check(&self, settings: &TrainSettings) -> Result<(), RunError> {
        let (ranks, batch) = (self.count(), settings.batch);
        if ranks == 1 {
            return Ok(());
        }
        if batch < ranks {
            return Err(RunError::Refused(format!(
                "a batch of {batch} cannot be shared by {ranks} ranks: start {batch} at most, or make `batch` larger"
            )));
        }
        let accumulate = settings.parts();
        // The first rank's is the largest, the last rank's the smallest.
        let parts = [0, ranks - 1].map(|rank| reduce::part(batch, rank, ranks).len());
        match parts.into_iter().find(|part| part % accumulate > 0) {
            None => Ok(()),
            Some(samples) => Err(RunError::Refused(format!(
                "`accumulate = {accumulate}` does not divide a rank's {samples} of the batch's {batch} samples: choose `batch` \
                 as a multiple of {}, ranks times `accumulate`",
                ranks * accumulate
            ))),
        }
    }

    /// Rank 0's snapshot, on all ranks: sent to a temporary file, because the others may not have access to its folder.
    pub(crate) fn snapshot(&self, own: Option<Snapshot>) -> Result<Option<Snapshot>, RunError> {
        if self.is_alone() {
            return Ok(own);
        }
        let send = |piece| {
            let sent = self.reducer.broadcast(0, piece).wait();
            sent.map_err(|error| RunError::from(RecordError::from(error)))
        };
        let there = self.gathered(own.is_some()).map_err(RecordError::from)?[0];
        match own {
            Some(own) => {
                let mut file = File::open(own.path());
                loop {
                    let mut piece = Vec::with_capacity(PIECE);
                    file = file.and_then(|file| {
                        (&file).take(PIECE as u64).read_to_end(&mut piece)?;
                        Ok(file)
                    });
                    // The other ranks wait for the end also after an error.
                    if file.is_err() {
                        piece.clear();
                    }
                    if send(piece)?.is_empty() {
                        break;
                    }
                }
                file.map_err(FileError::refused(own.path(), "read"))?;
                Ok(Some(own))
            }
            None if !there => Ok(None),
            None => {
                let mut file = NamedTempFile::new();
                loop {
                    let piece = send(Vec::new())?;
                    if piece.is_empty() {
                        break;
                    }
                    // Receive all pieces even after an error.
                    file = file.and_then(|mut file| file.write_all(&piece).map(|()| file));
                }
                let folder = std::env::temp_dir();
                let file = file.map_err(FileError::refused(&folder, "written"))?;
                Ok(Some(Snapshot::open(file.path())?))
            }
        }
    }

    /// Sends this rank's result, with the highest peak so far, and returns the joint result of all ranks.
    ///
    /// # Errors
    ///
    /// This rank's own, else [`RunError::OtherRank`] if another failed.
    pub(crate) fn tell(
        &self,
        own: Result<Tally, RunError>,
        peak: impl FnOnce() -> Bytes,
    ) -> Result<Tally, RunError> {
        if self.is_alone() || own.as_ref().is_err_and(RunError::is_of_network) {
            return own;
        }
        self.note(|record| record.measured_peak_bytes = peak());
        let said = Said {
            tally: own.as_ref().ok().copied(),
            stop: (self.asked_to_stop)(),
            record: self.state().own.clone(),
        };
        let all = match self.gathered(said) {
            Ok(all) => all,
            Err(error) => return own.and(Err(RecordError::from(error).into())),
        };
        if all.iter().any(|one| one.stop) {
            self.state().stopping = true;
        }
        own?;
        let tallies: Option<Vec<Tally>> = all.iter().map(|one| one.tally).collect();
        let records = all.into_iter().map(|one| one.record).collect();
        self.state().all = records;
        let sum = tallies.and_then(|tallies| tallies.into_iter().reduce(Tally::and));
        sum.ok_or(RunError::OtherRank)
    }

    /// Reports to the others that this rank failed, if they do not know yet.
    pub(crate) fn fail(&self, own: RunError, peak: impl FnOnce() -> Bytes) -> RunError {
        self.tell(Err(own), peak)
            .err()
            .unwrap_or(RunError::OtherRank)
    }

    /// Notes what this rank's record says from now on.
    pub(crate) fn note(&self, change: impl FnOnce(&mut RankRecord)) {
        change(&mut self.state().own);
    }

    /// The latest records of all ranks, by rank; empty if there is only one.
    pub(crate) fn records(&self) -> Vec<RankRecord> {
        self.state().all.clone()
    }

    /// Whether the run stops here; for a single rank, whether it was `asked` to.
    pub(crate) fn stops(&self, asked: bool) -> bool {
        match self.is_alone() {
            true => asked,
            false => self.state().stopping,
        }
    }
}

#[cfg(test)]
mod tests;
