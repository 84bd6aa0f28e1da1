//! One rank among several, and the operations of all ranks.

use std::{
    ops::Range,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    time::{Duration, Instant},
};

use rekindle_plan::graph::Rate;
use thiserror::Error;

/// Default time that ranks wait for each other: planning, measuring and compiling kernels take longer on some ranks.
pub const TIME_LIMIT: Duration = Duration::from_secs(300);

/// One of several ranks. All ranks must begin the same collective operations in the same order. Clones are the same rank.
#[derive(Clone)]
pub struct Reducer {
    rank: usize,
    ranks: usize,
    limit: Duration,
    /// The link between neighbouring ranks of a [ring](rekindle_plan::graph::Ring), if it is given; otherwise steps measure
    /// it.
    pub(crate) link: Option<Rate>,
    begin: Arc<dyn Fn(Collective) + Send + Sync>,
}

impl Reducer {
    /// The rank with the number `rank`, from 0, of `ranks`. `begin` begins an operation and returns at once; if the
    /// operation cannot begin, it is dropped together with its answer.
    pub fn new(
        rank: usize,
        ranks: usize,
        begin: impl Fn(Collective) + Send + Sync + 'static,
    ) -> Self {
        Self {
            rank,
            ranks,
            limit: TIME_LIMIT,
            link: None,
            begin: Arc::new(begin),
        }
    }

    /// Sets the longest time to wait for other ranks.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// This rank's number, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Begins an [`AllReduce`](Collective::AllReduce).
    pub fn all_reduce(&self, values: Vec<f32>) -> Pending<Vec<f32>> {
        self.begin(|answer| Collective::AllReduce(values, answer))
    }

    /// Begins an [`AllGather`](Collective::AllGather).
    pub fn all_gather(&self, bytes: Vec<u8>) -> Pending<Vec<Vec<u8>>> {
        self.begin(|answer| Collective::AllGather(bytes, answer))
    }

    /// Begins a [`Broadcast`](Collective::Broadcast) from the rank `root`.
    pub fn broadcast(&self, root: usize, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        self.begin(|answer| Collective::Broadcast(root, bytes, answer))
    }

    fn begin<T>(&self, operation: impl FnOnce(Answer<T>) -> Collective) -> Pending<T> {
        let (sender, answer) = sync_channel(1);
        (self.begin)(operation(Answer(sender)));
        Pending {
            answer,
            limit: self.limit,
        }
    }
}

/// An operation of all ranks: this rank's input, and the receiver of the result.
#[derive(Debug)]
pub enum Collective {
    /// The element-wise sum of the values of all ranks, which must have equal lengths; bit for bit the same on every
    /// rank.
    AllReduce(Vec<f32>, Answer<Vec<f32>>),
    /// The input of each rank, by rank; lengths may differ.
    AllGather(Vec<u8>, Answer<Vec<Vec<u8>>>),
    /// The input of the rank with this number; the input of other ranks is ignored.
    Broadcast(usize, Vec<u8>, Answer<Vec<u8>>),
}

/// The result of a collective operation that is in progress. If this is dropped, the operation continues and its result
/// is dropped.
#[derive(Debug)]
#[must_use = "the result comes by `wait`"]
pub struct Pending<T> {
    answer: Receiver<(Result<T, ReduceError>, Instant)>,
    limit: Duration,
}

/// The sender for the result of a collective operation. The result is ignored if nobody waits for it.
#[derive(Debug)]
pub struct Answer<T>(SyncSender<(Result<T, ReduceError>, Instant)>);

impl<T> Answer<T> {
    /// Sends the result of an operation that is done now.
    pub fn send(self, result: Result<T, ReduceError>) {
        let _ = self.0.send((result, Instant::now()));
    }
}

impl<T> Pending<T> {
    /// Waits for the result.
    ///
    /// # Errors
    ///
    /// If another rank has ended, has begun another operation, or does not answer in time.
    pub fn wait(self) -> Result<T, ReduceError> {
        self.wait_timed().map(|(result, _)| result)
    }

    /// Like [`wait`](Self::wait); also returns when the operation was done.
    ///
    /// # Errors
    ///
    /// See [`wait`](Self::wait).
    pub(crate) fn wait_timed(self) -> Result<(T, Instant), ReduceError> {
        match self.answer.recv_timeout(self.limit) {
            Ok((answer, done)) => answer.map(|answer| (answer, done)),
            Err(RecvTimeoutError::Timeout) => Err(ReduceError::TimedOut {
                seconds: self.limit.as_secs_f64(),
            }),
            Err(RecvTimeoutError::Disconnected) => {
                Err(ReduceError::Failed("the connection has ended".into()))
            }
        }
    }
}

/// Errors of collective operations.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ReduceError {
    /// A rank takes too long, or hangs.
    #[error(
        "the other ranks have not answered for {seconds} s: one of them hangs, or is so much slower that the time \
         limit must be longer"
    )]
    TimedOut {
        /// Seconds that this rank has waited.
        seconds: f64,
    },
    /// A rank has ended.
    #[error("rank {rank} has ended")]
    Gone {
        /// The first rank that has ended, as far as known.
        rank: usize,
    },
    /// Ranks differ in their settings or operations.
    #[error("{what} of {} differ from rank 0's: start all ranks with the same program and the same input", named(.ranks))]
    Differ {
        /// What differs, in the plural.
        what: String,
        /// The ranks that differ from rank 0.
        ranks: Vec<usize>,
    },
    /// The network failed.
    #[error("the exchange between ranks failed: {0}")]
    Failed(String),
}

/// `rank 2`, `ranks 1 and 3`, `ranks 1, 2 and 3`.
#[must_use]
pub fn named(ranks: &[usize]) -> String {
    match ranks {
        [] => "no rank".into(),
        [one] => format!("rank {one}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(usize::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
    }
}

/// A rank's part of `samples`; no ranks are one. Parts are contiguous, in order of rank, cover all samples, and differ in
/// size by at most one.
///
/// ```
/// use rekindle::reduce::part;
/// assert_eq!([0..4, 4..7, 7..10], [part(10, 0, 3), part(10, 1, 3), part(10, 2, 3)]);
/// ```
#[must_use]
pub fn part(samples: usize, rank: usize, ranks: usize) -> Range<usize> {
    let ranks = ranks.max(1);
    let (each, rest) = (samples / ranks, samples % ranks);
    let start = |rank: usize| rank * each + rank.min(rest);
    start(rank)..start(rank + 1)
}

/// Checks that all ranks have the same value. `what` names it in the plural; `own` is this rank's value and should be
/// short, for example a hash.
///
/// # Errors
///
/// [`ReduceError::Differ`] on every rank if any value differs from rank 0's.
pub fn agree(reducer: &Reducer, what: &str, own: &[u8]) -> Result<(), ReduceError> {
    let all = reducer.all_gather(own.to_vec()).wait()?;
    let others = (0..all.len()).filter(|&rank| all[rank] != all[0]);
    let ranks: Vec<usize> = others.collect();
    match ranks.is_empty() {
        true => Ok(()),
        false => Err(ReduceError::Differ {
            what: what.into(),
            ranks,
        }),
    }
}
