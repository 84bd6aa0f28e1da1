//! Watches a step action by action: notes what it held, and makes room for what comes next.
//!
//! A piece of graph runs many actions in one backward. So that each is still seen by itself, borders are set into the
//! graph between its stages: they pass gradients on as they are, and tell the watch on the way.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use burn::tensor::Tensor;
use rekindle_plan::{Action, Bytes, Schedule, StageId};

use super::room::Room;
use crate::{
    activation::{Activation, ActivationMapper},
    graph_ops::{BorderCall, border},
    meter::Meter,
};

/// What a border takes while its graph lives.
const BORDER_BYTES: usize = 1_100;
/// Share of a step's peak that watching it may take where both are the same memory.
const OWN_SHARE: f64 = 0.005;

/// Memory after an action of a schedule, everything that the meter counts included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEntry {
    /// The action.
    pub action: Action,
    /// Its place among the actions of the step. An entry is about all actions since the entry before, usually this one alone.
    pub index: usize,
    /// Bytes in live buffers after it.
    pub in_use_bytes: Bytes,
    /// The most since the entry before.
    pub peak_bytes: Bytes,
    /// Bytes that the pools have reserved after it, where there are pools.
    pub reserved_bytes: Option<Bytes>,
    /// When it was done, from the start of the step on.
    pub done_at: Duration,
}

/// At which actions a step is traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tracing {
    /// An entry for every so many actions, for the loss, and for the last backward.
    pub every: NonZeroUsize,
}

impl Tracing {
    /// An entry for every action.
    pub const EVERY_ACTION: Self = Self {
        every: NonZeroUsize::MIN,
    };

    /// As many entries as take no more than 0.5% of a peak that they would count in themselves: on the processor the
    /// trace is in the memory that it measures, and of thousands of tiny stages it would show itself.
    #[must_use]
    pub fn beside(peak: Bytes, schedule: &Schedule) -> Self {
        let actions = schedule.actions().len();
        // All entries, and a border behind every stage.
        let own = actions * size_of::<TraceEntry>() + schedule.stages() * BORDER_BYTES;
        let every = (own as f64 / (peak.0 as f64 * OWN_SHARE)).ceil() as usize;
        Self {
            every: NonZeroUsize::new(every).unwrap_or(NonZeroUsize::MIN),
        }
    }
}

/// Is called right after an action. May be called from inside a backward, where burn's graph is locked: an operation on
/// a tensor with autodiff would wait there for ever. Note what is to be done, and do it after the step.
pub type ActionHook = Arc<dyn Fn(Action) + Send + Sync>;

/// Is told of every action that is done. Clones are the same watch.
#[derive(Clone)]
pub(super) struct Watch {
    /// How many of the actions are done, and what was seen.
    progress: Arc<Mutex<Progress>>,
    actions: Arc<[Action]>,
    trace: Option<(Arc<dyn Meter>, Tracing)>,
    room: Option<Arc<Room>>,
    hook: Option<ActionHook>,
}

struct Progress {
    done: usize,
    started: Instant,
    entries: Vec<TraceEntry>,
}

impl Watch {
    /// A watch over a step of these actions. It makes room for the first action.
    pub(super) fn start(
        actions: Arc<[Action]>,
        trace: Option<(Arc<dyn Meter>, Tracing)>,
        room: Option<Arc<Room>>,
        hook: Option<ActionHook>,
    ) -> Self {
        let mut entries = Vec::new();
        if let Some((meter, tracing)) = &trace {
            // At once, so that no growing list doubles while the step is measured.
            entries.reserve_exact(actions.len() / tracing.every + 2);
            meter.read();
            meter.start_interval();
        }
        let progress = Progress {
            done: 0,
            started: Instant::now(),
            entries,
        };
        let watch = Self {
            progress: Arc::new(Mutex::new(progress)),
            actions,
            trace,
            room,
            hook,
        };
        watch.make_room(0);
        watch
    }

    /// An action is done, and with it all before it that nobody told of: where no gradient flows, no border is passed.
    /// A value of several tensors passes a border once for each: the last action's entry is corrected then. A tensor that
    /// stages hand on as it is comes to its borders when later actions are done, and says nothing new.
    pub(super) fn done(&self, action: Action) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let actions = &self.actions;
        let first = progress.done;
        if first > 0 && same(actions[first - 1], action) {
            self.correct(&mut progress);
            return;
        }
        let Some(ahead) = actions[first..].iter().position(|&next| same(next, action)) else {
            return;
        };
        progress.done = first + ahead + 1;
        self.note(&mut progress, first);
        if let Some(hook) = &self.hook {
            actions[first..progress.done]
                .iter()
                .copied()
                .for_each(&**hook);
        }
        self.make_room(progress.done);
    }

    /// Notes the actions that were done since `first`, where one of them is due.
    fn note(&self, progress: &mut Progress, first: usize) {
        let Some((meter, tracing)) = &self.trace else {
            return;
        };
        let indices = first..progress.done;
        let last = progress.done - 1;
        if !indices.clone().any(|index| self.is_due(index)) {
            return;
        }
        let memory = meter.read();
        let entry = TraceEntry {
            action: self.actions[last],
            index: last,
            in_use_bytes: memory.in_use_bytes,
            peak_bytes: memory.peak_in_use_bytes,
            reserved_bytes: memory.reserved_bytes,
            done_at: progress.started.elapsed(),
        };
        if *tracing == Tracing::EVERY_ACTION {
            let entries = indices.map(|index| TraceEntry {
                action: self.actions[index],
                index,
                ..entry
            });
            progress.entries.extend(entries);
        } else {
            progress.entries.push(entry);
        }
        meter.start_interval();
    }

    fn correct(&self, progress: &mut Progress) {
        let done = progress.done;
        if let (Some((meter, _)), Some(last)) = (&self.trace, progress.entries.last_mut())
            && last.index + 1 == done
        {
            let memory = meter.read();
            last.in_use_bytes = memory.in_use_bytes;
            last.peak_bytes = last.peak_bytes.max(memory.peak_in_use_bytes);
            last.reserved_bytes = memory.reserved_bytes;
            last.done_at = progress.started.elapsed();
            meter.start_interval();
        }
    }

    /// Whether the trace has an entry for the action at this place.
    fn is_due(&self, index: usize) -> bool {
        self.trace.as_ref().is_some_and(|(_, tracing)| {
            (index + 1).is_multiple_of(tracing.every.get())
                || index + 1 == self.actions.len()
                || self.actions[index] == Action::Loss
        })
    }

    fn make_room(&self, next: usize) {
        if let (Some(room), Some(&action)) = (&self.room, self.actions.get(next))
            && action != Action::Optimize
        {
            room.make_for(action);
        }
    }

    /// The value with a border behind it: a backward that comes back to it has finished `stage`.
    pub(super) fn border<A: Activation>(&self, value: A, stage: usize) -> A {
        struct Border(BorderCall);
        impl ActivationMapper for Border {
            fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
                border(tensor, self.0.clone())
            }
        }
        let backward = Action::Backward(StageId(stage));
        let is_due = || {
            let index = self.actions.iter().rposition(|&action| action == backward);
            index.is_some_and(|index| self.is_due(index))
        };
        if self.room.is_none() && self.hook.is_none() && !is_due() {
            return value;
        }
        let watch = self.clone();
        let call = BorderCall::new(move || watch.done(backward));
        value.map(&mut Border(call))
    }

    /// The entries, where the step was traced.
    pub(super) fn finish(&self) -> Vec<TraceEntry> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut progress.entries)
    }
}

/// Whether the machine means this action of the schedule: it does not tell the two untracked forwards apart.
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
    use rekindle_plan::planner;

    use super::*;

    #[test]
    fn a_border_that_is_passed_late_says_nothing_new() {
        let backward = |stage| Action::Backward(StageId(stage));
        let told: Arc<Mutex<Vec<Action>>> = Arc::default();
        let hook: ActionHook = {
            let told = Arc::clone(&told);
            Arc::new(move |action| told.lock().expect("no panic").push(action))
        };
        let actions = [3, 2, 1, 0].map(backward);
        let watch = Watch::start(actions.into(), None, None, Some(hook));
        // The second tensor of the value comes to the border of stage 3 when stage 2 is done.
        for (stage, expected) in [(3, 1), (2, 2), (3, 2), (1, 3), (2, 3), (1, 3), (0, 4)] {
            watch.done(backward(stage));
            assert_eq!(told.lock().expect("no panic")[..], actions[..expected]);
        }
    }

    #[test]
    fn a_trace_takes_no_more_than_its_share() {
        let schedule = planner::none(1_000).expect("stages");
        // 1,000 borders and 2,002 entries, in megabytes: about 1.3.
        let every = |peak| Tracing::beside(Bytes(peak), &schedule).every.get();
        assert_eq!(every(400 << 20), 1);
        let few = every(10 << 20);
        let borders = 1_000 / few * BORDER_BYTES;
        let entries = 2_002 / few * size_of::<TraceEntry>();
        assert!(borders + entries <= (10 << 20) / 200);
        assert!(few < 40);
    }
}
