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

use super::clock::Clock;

/// How long ranks wait for each other unless told otherwise: some plan, measure or compile kernels longer than others.
pub const TIME_LIMIT: Duration = Duration::from_secs(300);

/// One rank among several. All ranks begin the same collective operations in the same order.
pub trait Reducer: Send + Sync {
    /// This rank's number, from 0 on.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn ranks(&self) -> usize;

    /// How long this rank waits for the others.
    fn time_limit(&self) -> Duration;

    /// The clock that its operations go by.
    fn clock(&self) -> Clock {
        Clock::default()
    }

    /// The link between neighbouring ranks of a [ring](rekindle_plan::graph::Ring), where it is given; else steps measure
    /// it.
    fn link(&self) -> Option<Rate> {
        None
    }

    /// Begins an operation and returns at once. Where it cannot be begun, it is dropped, and with it its answer.
    fn begin(&self, operation: Collective);

    /// Begins an [`AllReduce`](Collective::AllReduce).
    fn all_reduce(&self, values: Vec<f32>) -> Pending<Vec<f32>> {
        let (answer, pending) = Pending::new(self.time_limit(), self.clock());
        self.begin(Collective::AllReduce(values, answer));
        pending
    }

    /// Begins an [`AllGather`](Collective::AllGather).
    fn all_gather(&self, bytes: Vec<u8>) -> Pending<Vec<Vec<u8>>> {
        let (answer, pending) = Pending::new(self.time_limit(), self.clock());
        self.begin(Collective::AllGather(bytes, answer));
        pending
    }

    /// Begins a [`Broadcast`](Collective::Broadcast) from the rank `root`.
    fn broadcast(&self, root: usize, bytes: Vec<u8>) -> Pending<Vec<u8>> {
        let (answer, pending) = Pending::new(self.time_limit(), self.clock());
        self.begin(Collective::Broadcast(root, bytes, answer));
        pending
    }
}

impl<R: Reducer + ?Sized> Reducer for Arc<R> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn ranks(&self) -> usize {
        (**self).ranks()
    }

    fn time_limit(&self) -> Duration {
        (**self).time_limit()
    }

    fn clock(&self) -> Clock {
        (**self).clock()
    }

    fn link(&self) -> Option<Rate> {
        (**self).link()
    }

    fn begin(&self, operation: Collective) {
        (**self).begin(operation);
    }
}

/// An operation of all ranks: what this one gives, and where the result goes.
#[derive(Debug)]
pub enum Collective {
    /// The element-wise sum of the values of all ranks, which give equally many: the same bits on every rank.
    AllReduce(Vec<f32>, Answer<Vec<f32>>),
    /// What each rank gives, by rank, of any lengths.
    AllGather(Vec<u8>, Answer<Vec<Vec<u8>>>),
    /// What the rank of this number gives; what others give is dropped.
    Broadcast(usize, Vec<u8>, Answer<Vec<u8>>),
}

/// The result of a collective operation that is under way. Dropped, the operation goes on and its result is dropped.
#[derive(Debug)]
#[must_use = "the result comes by `wait`"]
pub struct Pending<T> {
    answer: Receiver<(Result<T, ReduceError>, Instant)>,
    limit: Duration,
    clock: Clock,
}

/// Where the result of a collective operation goes. Whoever does not wait for it wants none.
#[derive(Debug)]
pub struct Answer<T>(SyncSender<(Result<T, ReduceError>, Instant)>);

impl<T> Answer<T> {
    /// The operation is done.
    pub fn send(self, result: Result<T, ReduceError>) {
        self.send_at(result, Instant::now());
    }

    /// The operation is done at this moment of the clock that it goes by.
    pub fn send_at(self, result: Result<T, ReduceError>, done: Instant) {
        let _ = self.0.send((result, done));
    }
}

impl<T> Pending<T> {
    /// A result that is to come within `limit`, and where it goes.
    fn new(limit: Duration, clock: Clock) -> (Answer<T>, Self) {
        let (sender, answer) = sync_channel(1);
        let pending = Self {
            answer,
            limit,
            clock,
        };
        (Answer(sender), pending)
    }

    /// Waits for the result.
    ///
    /// # Errors
    ///
    /// If another rank has gone, has begun another operation, or does not answer in time.
    pub fn wait(self) -> Result<T, ReduceError> {
        self.wait_timed().map(|(result, _)| result)
    }

    /// As [`wait`](Self::wait), with when the operation was done.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_timed(self) -> Result<(T, Instant), ReduceError> {
        match self.answer.recv_timeout(self.limit) {
            Ok((answer, done)) => {
                self.clock.reach(done);
                answer.map(|answer| (answer, done))
            }
            Err(RecvTimeoutError::Timeout) => Err(ReduceError::TimedOut {
                seconds: self.limit.as_secs_f64(),
            }),
            Err(RecvTimeoutError::Disconnected) => {
                Err(ReduceError::Failed("the connection has ended".into()))
            }
        }
    }
}

/// Why ranks cannot go on together.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ReduceError {
    /// Some rank takes too long, or hangs.
    #[error(
        "the other ranks have not answered for {seconds} s: one of them hangs, or is so much slower that the time \
         limit must be longer"
    )]
    TimedOut {
        /// How long this rank has waited.
        seconds: f64,
    },
    /// A rank has ended.
    #[error("rank {rank} has ended")]
    Gone {
        /// The first of those that have, as far as that is known.
        rank: usize,
    },
    /// Ranks do different things.
    #[error("{what} of {} differ from rank 0's: start all ranks with the same program and the same input", named(.ranks))]
    Differ {
        /// What differs, in the plural.
        what: String,
        /// Those that are unlike rank 0.
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

/// A rank's part of `samples`: contiguous, and the sizes of the parts differ by at most one. Parts are in order of rank
/// and leave nothing out.
///
/// ```
/// use rekindle::reduce::part;
/// assert_eq!([0..4, 4..7, 7..10], [part(10, 0, 3), part(10, 1, 3), part(10, 2, 3)]);
/// ```
#[must_use]
pub fn part(samples: usize, rank: usize, ranks: usize) -> Range<usize> {
    let (each, rest) = (samples / ranks, samples % ranks);
    let start = |rank: usize| rank * each + rank.min(rest);
    start(rank)..start(rank + 1)
}

/// Compares what ranks go by. `what` names it in the plural; `own` is this rank's, and short: a hash will do.
///
/// # Errors
///
/// [`ReduceError::Differ`], on every rank alike, where any is unlike rank 0's.
pub fn agree(reducer: &dyn Reducer, what: &str, own: &[u8]) -> Result<(), ReduceError> {
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
