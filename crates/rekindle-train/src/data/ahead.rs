//! Builds the next batch on a thread of its own while a step runs.
//!
//! One batch waits at most. Batches are asked for by number, in any order: the thread goes on with the number that follows.
//! So the samples of a step are the same as without the thread, also after a failed step and after going back.

use std::{
    sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    thread::{Builder, Scope},
};

use rekindle::record::driver::catch;
use rekindle_plan::Bytes;

use super::{batch::Batch, dataset::TargetKind};
use crate::{model::spec::SampleShape, run_error::RunError};

type Built = Result<Batch, String>;

/// Bytes that a thread and its channels hold besides the batch.
const THREAD_BYTES: u64 = 4 << 10;

/// Bytes of the host that the next batch takes while a step runs.
pub(crate) fn held_bytes(sample: &SampleShape, target: TargetKind, samples: usize) -> Bytes {
    let size = sample.elements();
    let predicted = match target {
        TargetKind::Classes(_) => 1,
        TargetKind::TokenClasses(_) => size,
        TargetKind::Values(values) => values as u64,
    };
    // Numbers, ids and classes all have 4 bytes; places and their numbers in the source are there while a batch is built.
    let numbers = size.saturating_add(predicted).saturating_mul(4);
    let of_sample = numbers.saturating_add(2 * size_of::<usize>() as u64);
    let of_batch = of_sample.saturating_mul(samples as u64);
    Bytes(of_batch.saturating_add(THREAD_BYTES))
}

/// The batches of a run. The thread ends when this is dropped.
pub(crate) struct Ahead {
    ask: Sender<usize>,
    built: Receiver<Built>,
    /// Number of batches of the whole run.
    count: usize,
    /// The batch that is being built, or is ready.
    asked: Option<usize>,
    ready: Option<Built>,
}

impl Ahead {
    /// Starts the thread; `build` builds a batch by its number, which is below `count`.
    pub(crate) fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        count: usize,
        build: impl Fn(usize) -> Batch + Send + 'scope,
    ) -> Result<Self, RunError> {
        let (ask, asked) = channel();
        let (send, built): (SyncSender<Built>, _) = sync_channel(1);
        let started = Builder::new().spawn_scoped(scope, move || {
            for number in asked {
                if send.send(catch(|| build(number))).is_err() {
                    break;
                }
            }
        });
        started.map_err(|error| RunError::Batch(error.to_string()))?;
        Ok(Self {
            ask,
            built,
            count,
            asked: None,
            ready: None,
        })
    }

    /// The batch of this number. The next one is built meanwhile.
    pub(crate) fn take(&mut self, number: usize) -> Result<Batch, RunError> {
        if self.asked != Some(number) {
            // Another one is not wanted any more.
            self.wait();
            self.ready = None;
            self.begin(number);
        }
        self.wait();
        let batch = self.ready.take();
        self.begin(number + 1);
        let ended = || Err("its thread has ended".into());
        batch.unwrap_or_else(ended).map_err(RunError::Batch)
    }

    /// Waits until the next batch is ready.
    pub(crate) fn wait(&mut self) {
        if self.asked.is_some() && self.ready.is_none() {
            self.ready = self.built.recv().ok();
        }
    }

    fn begin(&mut self, number: usize) {
        let wanted = Some(number).filter(|&number| number < self.count);
        self.asked = wanted.filter(|&number| self.ask.send(number).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::thread::scope;

    use super::*;
    use crate::data::batch::Numbers;

    fn batch(number: usize) -> Batch {
        assert_ne!(number, 7, "no such sample");
        Batch {
            shape: vec![1, 1],
            inputs: Numbers::Ids(vec![number as i32]),
            targets: Numbers::Ids(vec![0]),
        }
    }

    #[test]
    fn batches_come_in_the_order_in_which_they_are_asked_for() {
        scope(|scope| {
            let mut ahead = Ahead::start(scope, 10, batch).expect("a thread");
            // As they follow, again after a failure, back, and beyond a gap.
            for number in [0, 1, 2, 2, 3, 1, 2, 8, 9, 0] {
                assert_eq!(ahead.take(number), Ok(batch(number)), "{number}");
            }
        });
    }

    #[test]
    fn a_panic_is_the_error_of_its_batch() {
        scope(|scope| {
            let mut ahead = Ahead::start(scope, 10, batch).expect("a thread");
            assert_eq!(ahead.take(6), Ok(batch(6)));
            let error = ahead.take(7).expect_err("a panic").to_string();
            assert!(error.contains("no such sample"), "{error}");
            assert_eq!(ahead.take(8), Ok(batch(8)));
        });
    }
}
