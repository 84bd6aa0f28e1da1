//! Ranks that are threads of one process, for tests: sums are taken in order of rank, so they are reproducible.
//!
//! The last rank that begins an operation computes it for all, so operations run one after another.

use std::{
    collections::VecDeque,
    mem::take,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Collective, ReduceError, Reducer};

/// One of the ranks.
struct Own {
    rank: usize,
    world: Arc<Mutex<World>>,
}

/// What all ranks share.
struct World {
    /// The unanswered operations of each rank.
    waiting: Vec<VecDeque<Collective>>,
    /// The ranks that have ended, in that order.
    gone: Vec<usize>,
}

/// Creates `ranks` ranks; move each to its own thread.
#[must_use]
pub fn in_process(ranks: usize) -> Vec<Reducer> {
    let world = Arc::new(Mutex::new(World {
        waiting: (0..ranks).map(|_| VecDeque::new()).collect(),
        gone: Vec::new(),
    }));
    let all = (0..ranks).map(|rank| {
        let world = world.clone();
        let own = Own { rank, world };
        Reducer::new(rank, ranks, move |operation| own.begin(operation))
    });
    all.collect()
}

impl Own {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, operation: Collective) {
        let mut world = self.world();
        world.waiting[self.rank].push_back(operation);
        world.serve();
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let mut world = self.world();
        world.gone.push(self.rank);
        world.serve();
    }
}

impl World {
    /// Answers the operations that all ranks have begun, and refuses those that wait for a rank that has ended.
    fn serve(&mut self) {
        while self.waiting.iter().all(|queue| !queue.is_empty()) {
            let round = self.waiting.iter_mut().filter_map(VecDeque::pop_front);
            answer(round.collect());
        }
        // A rank that has ended with no operation waiting will never complete one. The first such rank is the cause:
        // others may have ended because of its error.
        let ended = self.gone.iter().find(|&&one| self.waiting[one].is_empty());
        if let Some(&rank) = ended {
            for ask in self.waiting.iter_mut().flat_map(|queue| queue.drain(..)) {
                ask.refuse(ReduceError::Gone { rank });
            }
        }
    }
}

impl Collective {
    /// Operations of all ranks must have equal kinds.
    fn kind(&self) -> (u8, usize) {
        match self {
            Self::AllReduce(values, _) => (0, values.len()),
            Self::AllGather(..) => (1, 0),
            Self::Broadcast(root, ..) => (2, *root),
        }
    }

    fn refuse(self, error: ReduceError) {
        match self {
            Self::AllReduce(_, answer) => answer.send(Err(error)),
            Self::AllGather(_, answer) => answer.send(Err(error)),
            Self::Broadcast(_, _, answer) => answer.send(Err(error)),
        }
    }
}

/// Answers an operation of all ranks.
fn answer(mut round: Vec<Collective>) {
    let kinds: Vec<_> = round.iter().map(Collective::kind).collect();
    let ranks: Vec<usize> = (0..kinds.len())
        .filter(|&rank| kinds[rank] != kinds[0])
        .collect();
    if !ranks.is_empty() {
        for ask in round {
            let (what, ranks) = ("collective operations".into(), ranks.clone());
            ask.refuse(ReduceError::Differ { what, ranks });
        }
        return;
    }
    let (mut sum, mut gathered, mut sent) = (Vec::new(), Vec::new(), None);
    for (rank, ask) in round.iter_mut().enumerate() {
        match ask {
            Collective::AllReduce(values, _) if rank == 0 => sum = take(values),
            Collective::AllReduce(values, _) => {
                for (sum, more) in sum.iter_mut().zip(take(values)) {
                    *sum += more;
                }
            }
            Collective::AllGather(bytes, _) => gathered.push(take(bytes)),
            Collective::Broadcast(root, bytes, _) if *root == rank => sent = Some(take(bytes)),
            Collective::Broadcast(..) => {}
        }
    }
    for ask in round {
        match ask {
            Collective::AllReduce(_, answer) => answer.send(Ok(sum.clone())),
            Collective::AllGather(_, answer) => answer.send(Ok(gathered.clone())),
            Collective::Broadcast(_, _, answer) => {
                let root = || ReduceError::Failed("the broadcast's root is no rank".into());
                answer.send(sent.clone().ok_or_else(root));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    /// Runs each rank on a thread; results by rank.
    fn each<T: Send>(ranks: Vec<Reducer>, run: impl Fn(Reducer) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let run = &run;
            let threads = ranks.into_iter().map(|rank| scope.spawn(move || run(rank)));
            let threads: Vec<_> = threads.collect();
            threads
                .into_iter()
                .map(|one| one.join().expect("no panic"))
                .collect()
        })
    }

    #[test]
    fn every_rank_gets_the_sum_and_what_was_given() {
        for ranks in 1..5 {
            let sums = each(in_process(ranks), |rank| {
                let own = rank.rank() as f32;
                // Operations begun together finish in order.
                let first = rank.all_reduce(vec![own, 1.0]);
                let second = rank.all_reduce(vec![own * own]);
                let gathered = rank
                    .all_gather(vec![7; rank.rank()])
                    .wait()
                    .expect("gathered");
                let sent = rank.broadcast(ranks - 1, vec![rank.rank() as u8]).wait();
                let sums = (
                    first.wait().expect("summed"),
                    second.wait().expect("summed"),
                );
                (sums, gathered, sent.expect("sent"))
            });
            // Sums of the first integers and of their squares.
            let n = ranks as f32;
            let (linear, squares) = (n * (n - 1.0) / 2.0, (n - 1.0) * n * (2.0 * n - 1.0) / 6.0);
            for ((first, second), gathered, sent) in sums {
                assert_eq!((first, second), (vec![linear, n], vec![squares]));
                let lengths: Vec<usize> = gathered.iter().map(Vec::len).collect();
                assert_eq!(lengths, (0..ranks).collect::<Vec<_>>());
                assert_eq!(sent, [ranks as u8 - 1]);
            }
        }
    }

    #[test]
    fn a_rank_that_ends_is_named() {
        let errors = each(in_process(3), |rank| match rank.rank() {
            1 => None,
            _ => rank.all_reduce(vec![0.0]).wait().err(),
        });
        let gone = Some(ReduceError::Gone { rank: 1 });
        assert_eq!(errors, [gone.clone(), None, gone]);
    }

    #[test]
    fn operations_that_do_not_go_together_are_refused_on_all_ranks() {
        let errors = each(in_process(3), |rank| {
            let length = if rank.rank() == 2 { 4 } else { 3 };
            rank.all_reduce(vec![0.0; length])
                .wait()
                .expect_err("refused")
        });
        for error in errors {
            assert!(
                matches!(&error, ReduceError::Differ { ranks, .. } if *ranks == [2]),
                "{error}"
            );
        }
    }

    #[test]
    fn a_rank_that_hangs_is_not_waited_for() {
        let mut ranks = in_process(2);
        let _hangs = ranks.pop();
        let one = ranks
            .pop()
            .expect("two")
            .with_time_limit(Duration::from_millis(20));
        let error = one.all_reduce(vec![0.0]).wait().expect_err("no answer");
        assert!(matches!(error, ReduceError::TimedOut { .. }), "{error}");
    }
}
