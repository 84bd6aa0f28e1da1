//! Room in the pools: what they reserve stays within a budget.
//!
//! A GPU's pools keep what was freed, and a free buffer of one size is of no use to a request of another. So they may
//! reserve more than a schedule ever holds at once. What each action takes at most is known beforehand: where the pools
//! might grow past the budget, they are trimmed first, and then reserve no more than is in use and what pools add to
//! that (see [`pool_overhead`](crate::device::pool_overhead), which plans count). A schedule whose simulated peak is
//! within the budget therefore never reserves more than the budget.
//!
//! Reading the pools makes operations run that fusion holds back, so it is put off for as long as the sum of what actions
//! may have taken since the last reading leaves room. It does not wait for the device: pools count a buffer when the
//! operation is issued.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use rekindle_plan::{Action, Bytes, Chain, StageId};

use crate::meter::Meter;

/// Keeps pools within a budget.
pub struct Room {
    meter: Arc<dyn Meter>,
    budget: u64,
    chain: Chain,
    /// All gradients of parameters.
    grad_bytes: Bytes,
    /// What the pools may have reserved by now, at most.
    bound: Mutex<u64>,
    trims: AtomicU64,
}

impl Room {
    /// Room for the actions of `chain` in pools that may reserve `budget` bytes.
    #[must_use]
    pub fn new(meter: Arc<dyn Meter>, budget: Bytes, chain: Chain) -> Self {
        Self {
            meter,
            budget: budget.0,
            grad_bytes: chain.grad_bytes(),
            chain,
            bound: Mutex::new(u64::MAX),
            trims: AtomicU64::new(0),
        }
    }

    /// Room for buffers whose sizes the caller knows.
    #[must_use]
    pub fn of_bytes(meter: Arc<dyn Meter>, budget: Bytes) -> Self {
        Self::new(meter, budget, Chain::default())
    }

    /// Stages of the chain.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.chain.stages.len()
    }

    /// Makes room for what an action on a stage of the chain allocates: to be called right before it.
    pub fn make_for(&self, action: Action) {
        self.make(needed(&self.chain, action));
    }

    /// Makes room for the update of one stage's parameters; the optimizer's state appears in the first.
    pub fn make_for_update(&self, stage: usize, first_step: bool) {
        let needed = needed_by_update(&self.chain, self.grad_bytes, stage, first_step);
        self.make(needed);
    }

    /// How often the pools were trimmed.
    #[must_use]
    pub fn trims(&self) -> u64 {
        self.trims.load(Relaxed)
    }

    /// Makes room for buffers of so many bytes.
    pub fn make(&self, need: Bytes) {
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        if bound.saturating_add(need.0) > self.budget {
            *bound = self.meter.sample().0;
            if bound.saturating_add(need.0) > self.budget {
                self.meter.trim();
                self.trims.fetch_add(1, Relaxed);
                *bound = self.meter.sample().0;
            }
        }
        *bound = bound.saturating_add(need.0);
    }
}

/// What the update of a stage's parameters allocates at most, one parameter after the other. All gradients are
/// `grad_bytes`.
#[must_use]
pub fn needed_by_update(chain: &Chain, grad_bytes: Bytes, stage: usize, first_step: bool) -> Bytes {
    let optimizer = &chain.optimizer;
    let own = chain.stages[stage].grad_bytes;
    if own == Bytes::ZERO {
        return Bytes::ZERO;
    }
    let state = if first_step {
        let share = own.0 as f64 / grad_bytes.0 as f64;
        Bytes((optimizer.state_bytes.0 as f64 * share) as u64)
    } else {
        Bytes::ZERO
    };
    optimizer.temp_bytes + state
}

/// What an action allocates at most: its outputs and its temporary bytes.
#[must_use]
pub fn needed(chain: &Chain, action: Action) -> Bytes {
    match action {
        Action::Forward(StageId(stage)) | Action::ForwardKeep(StageId(stage)) => {
            let stage = &chain.stages[stage];
            stage.output_bytes + stage.forward_temp_bytes
        }
        Action::ForwardTracked { stage, alternative } => {
            let stage = &chain.stages[stage.0];
            let way = stage.tracked(alternative).unwrap_or_default();
            way.saved_bytes + way.tracked_temp_bytes
        }
        Action::Loss => {
            let temp = chain.loss.forward_temp_bytes + chain.loss.backward_temp_bytes;
            chain.gradient_bytes(chain.stages.len()) + temp
        }
        Action::Backward(StageId(index)) => {
            let stage = &chain.stages[index];
            let temps = stage.ways().map(|way| way.backward_temp_bytes);
            chain.gradient_bytes(index) + stage.grad_bytes + temps.max().unwrap_or_default()
        }
        Action::Optimize => chain.optimizer.temp_bytes,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use rekindle_plan::{LossCost, OptimizerCost, Stage};

    use super::*;
    use crate::meter::{MemoryReading, PeakMemory};

    /// Pools that hold 60 bytes, 20 of them in use, and count how often they are read.
    #[derive(Default)]
    struct Pools {
        trimmed: AtomicBool,
        reads: AtomicU64,
    }

    impl Meter for Pools {
        fn read(&self) -> MemoryReading {
            unreachable!("it waits for the device");
        }

        fn sample(&self) -> Bytes {
            self.reads.fetch_add(1, Relaxed);
            Bytes(if self.trimmed.load(Relaxed) { 20 } else { 60 })
        }

        fn start_interval(&self) {}

        fn lifetime_peak(&self) -> PeakMemory {
            PeakMemory::default()
        }

        fn trim(&self) {
            self.trimmed.store(true, Relaxed);
        }
    }

    fn chain() -> Chain {
        Chain {
            input_bytes: Bytes(1),
            input_grad: false,
            fixed_bytes: Bytes(0),
            stages: vec![Stage {
                output_bytes: Bytes(10),
                saved_bytes: Bytes(10),
                forward_temp_bytes: Bytes(5),
                ..Stage::default()
            }],
            loss: LossCost::default(),
            optimizer: OptimizerCost::default(),
        }
    }

    #[test]
    fn pools_are_read_only_where_they_might_have_grown_past_the_budget_and_trimmed_only_where_they_have()
     {
        let pools = Arc::new(Pools::default());
        let meter: Arc<dyn Meter> = pools.clone();
        let room = Room::new(meter, Bytes(100), chain());
        let forward = Action::Forward(StageId(0));
        // The first reading shows 60; 75 and 90 bytes at most after the first and the second forward.
        room.make_for(forward);
        room.make_for(forward);
        assert_eq!((pools.reads.load(Relaxed), room.trims()), (1, 0));
        // 105 at most: a reading shows 60 again.
        room.make_for(forward);
        assert_eq!((pools.reads.load(Relaxed), room.trims()), (2, 0));

        let room = Room::new(pools.clone(), Bytes(70), chain());
        room.make_for(forward);
        assert_eq!((pools.reads.load(Relaxed), room.trims()), (4, 1));
    }
}
