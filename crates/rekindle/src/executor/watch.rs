//! Records memory in use after each action of a step.
//!
//! One backward pass through a piece covers many actions. To record each action separately, borders are inserted into
//! the graph between its stages: they pass gradients on unchanged and notify the watch.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use burn::tensor::Tensor;
use rekindle_plan::{Action, Bytes, StageId};

use crate::{
    graph_ops::{BorderCall, border},
    meter::Meter,
    tensor_tree::{TensorMapper, TensorTree},
};

/// Memory after an action of a schedule, including everything that the meter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEntry {
    /// The action.
    pub action: Action,
    /// Bytes in live buffers after it.
    pub in_use_bytes: Bytes,
    /// The peak since the previous entry.
    pub peak_bytes: Bytes,
    /// Bytes that the pools have reserved after it, if the device has pools.
    pub reserved_bytes: Option<Bytes>,
    /// When it was done, counted from the start of the step.
    pub done_at: Duration,
}

/// Records every completed action. Clones share the entries.
#[derive(Clone)]
pub(super) struct Watch {
    actions: Arc<[Action]>,
    meter: Arc<dyn Meter>,
    started: Instant,
    /// One entry for each completed action.
    entries: Arc<Mutex<Vec<TraceEntry>>>,
}

impl Watch {
    /// Starts a watch for a step with these actions.
    pub(super) fn start(actions: Arc<[Action]>, meter: Arc<dyn Meter>) -> Self {
        // Allocated in full, so that the list does not grow while the step is measured.
        let entries = Arc::new(Mutex::new(Vec::with_capacity(actions.len())));
        meter.read();
        meter.start_interval();
        Self {
            actions,
            meter,
            started: Instant::now(),
            entries,
        }
    }

    /// Records that an action is done, together with all earlier actions that were not recorded: where no gradient
    /// flows, no border is reached. A value of several tensors reaches a border once for each tensor, and then the last
    /// action's entry is corrected. A tensor that stages pass on unchanged reaches its borders after later actions are
    /// done; such calls are ignored.
    pub(super) fn done(&self, action: Action) {
        let mut entries = self.entries();
        let first = entries.len();
        let again = match entries.last_mut() {
            Some(last) if same(last.action, action) => Some(last),
            _ => None,
        };
        let ahead = self.actions[first..]
            .iter()
            .position(|&next| same(next, action));
        if again.is_none() && ahead.is_none() {
            return;
        }
        let memory = self.meter.read();
        let entry = |action| TraceEntry {
            action,
            in_use_bytes: memory.in_use_bytes,
            peak_bytes: memory.peak_in_use_bytes,
            reserved_bytes: memory.reserved_bytes,
            done_at: self.started.elapsed(),
        };
        match (again, ahead) {
            (Some(last), _) => {
                *last = TraceEntry {
                    peak_bytes: last.peak_bytes.max(memory.peak_in_use_bytes),
                    ..entry(last.action)
                };
            }
            (None, ahead) => {
                let done = &self.actions[first..=first + ahead.unwrap_or_default()];
                entries.extend(done.iter().map(|&action| entry(action)));
            }
        }
        self.meter.start_interval();
    }

    /// Adds a border behind the value: when a backward pass reaches it, `stage` is done.
    pub(super) fn border<A: TensorTree>(&self, value: A, stage: usize) -> A {
        struct Border(BorderCall);
        impl TensorMapper for Border {
            fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
                border(tensor, self.0.clone())
            }
        }
        let watch = self.clone();
        let call = BorderCall::new(move || watch.done(Action::Backward(StageId(stage))));
        value.map(&mut Border(call))
    }

    /// Returns the entries.
    pub(super) fn finish(&self) -> Vec<TraceEntry> {
        std::mem::take(&mut self.entries())
    }

    fn entries(&self) -> MutexGuard<'_, Vec<TraceEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an action reported by the machine is this action of the schedule. The machine does not distinguish the two
/// kinds of untracked forward.
fn same(scheduled: Action, done: Action) -> bool {
    match (scheduled, done) {
        (
            Action::Forward(scheduled) | Action::ForwardKeep(scheduled),
            Action::Forward(done) | Action::ForwardKeep(done),
        ) => scheduled == done,
        _ => scheduled == done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::{MemoryReading, PeakMemory};

    struct Blind;

    impl Meter for Blind {
        fn read(&self) -> MemoryReading {
            MemoryReading::default()
        }

        fn start_interval(&self) {}

        fn lifetime_peak(&self) -> PeakMemory {
            PeakMemory::default()
        }
    }

    #[test]
    fn a_border_that_is_passed_late_says_nothing_new() {
        let backward = |stage| Action::Backward(StageId(stage));
        let actions = [3, 2, 1, 0].map(backward);
        let watch = Watch::start(actions.into(), Arc::new(Blind));
        // The second tensor of the value reaches the border of stage 3 after stage 2 is done.
        for (stage, expected) in [(3, 1), (2, 2), (3, 2), (1, 3), (2, 3), (1, 3), (0, 4)] {
            watch.done(backward(stage));
            let told: Vec<Action> = watch.entries().iter().map(|entry| entry.action).collect();
            assert_eq!(told[..], actions[..expected]);
        }
    }
}
