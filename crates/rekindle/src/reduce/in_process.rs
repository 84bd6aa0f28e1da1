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
