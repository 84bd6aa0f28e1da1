//! Watches a step action by action: notes what it held, and makes room for what comes next.
//!
//! A piece of graph runs many actions in one backward. So that each is still seen by itself, borders are set into the
//! graph between its stages: they pass gradients on as they are, and tell the watch on the way.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Tensor, TensorPrimitive};
use rekindle_plan::{Action, Bytes, StageId};

use super::room::Room;
use crate::{
    activation::{Activation, ActivationMapper},
    backend::{BorderCall, CheckpointBackend},
    meter::Meter,
};

/// Memory after one action of a schedule, everything that the meter counts included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEntry {
    /// The action.
    pub action: Action,
    /// Bytes in live buffers after it.
    pub in_use_bytes: Bytes,
    /// The most since the action before.
    pub peak_bytes: Bytes,
}

/// Is told of every action that is done. Clones are the same watch.
#[derive(Clone)]
pub(super) struct Watch {
    /// The schedule's actions, and how many of them are done.
    progress: Arc<Mutex<Progress>>,
    actions: Arc<[Action]>,
    trace: Option<Arc<dyn Meter>>,
    room: Option<Arc<Room>>,
}

#[derive(Default)]
struct Progress {
    done: usize,
    entries: Vec<TraceEntry>,
}

impl Watch {
    /// A watch over a step of these actions. It makes room for the first.
    pub(super) fn start(
        actions: Arc<[Action]>,
        trace: Option<Arc<dyn Meter>>,
        room: Option<Arc<Room>>,
    ) -> Self {
        if let Some(meter) = &trace {
            meter.read();
            meter.start_interval();
        }
        let watch = Self {
            progress: Arc::default(),
            actions,
            trace,
            room,
        };
        watch.make_room(0);
        watch
    }

    /// An action is done, and with it all before it that nobody told of: where no gradient flows, no border is passed.
    /// A value of several tensors passes a border once for each; what is done already only corrects its entry.
    pub(super) fn done(&self, action: Action) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = self.trace.as_ref().map(|meter| meter.read());
        if progress.done > 0 && same(self.actions[progress.done - 1], action) {
            if let (Some(last), Some(memory)) = (progress.entries.last_mut(), memory) {
                last.in_use_bytes = memory.in_use_bytes;
                last.peak_bytes = last.peak_bytes.max(memory.peak_in_use_bytes);
            }
        } else {
            while let Some(&next) = self.actions.get(progress.done) {
                progress.done += 1;
                progress.entries.extend(memory.map(|memory| TraceEntry {
                    action: next,
                    in_use_bytes: memory.in_use_bytes,
                    peak_bytes: memory.peak_in_use_bytes,
                }));
                if same(next, action) {
                    break;
                }
            }
            self.make_room(progress.done);
        }
        if let Some(meter) = &self.trace {
            meter.start_interval();
        }
    }

    fn make_room(&self, next: usize) {
        if let (Some(room), Some(&action)) = (&self.room, self.actions.get(next))
            && action != Action::Optimize
        {
            room.make_for(action);
        }
    }

    /// The value with a border behind it: a backward that comes back to it has finished `stage`.
    pub(super) fn border<B: CheckpointBackend, A: Activation<B>>(
        &self,
        value: A,
        stage: usize,
    ) -> A {
        struct Border(BorderCall);
        impl<B: CheckpointBackend> ActivationMapper<B> for Border {
            fn float<const D: usize>(&mut self, tensor: Tensor<B, D>) -> Tensor<B, D> {
                let primitive = tensor.into_primitive().tensor();
                let bordered = B::border(primitive, self.0.clone());
                Tensor::from_primitive(TensorPrimitive::Float(bordered))
            }
        }
        let watch = self.clone();
        let call = BorderCall::new(move || watch.done(Action::Backward(StageId(stage))));
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
