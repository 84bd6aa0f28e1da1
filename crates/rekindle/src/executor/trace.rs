//! What a step held, action by action.
//!
//! A piece of graph runs many actions in one backward. So that the trace still has one entry for each, borders are set
//! into the graph between its stages: they pass gradients on as they are, and note the memory on the way.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use burn::tensor::{Tensor, TensorPrimitive};
use rekindle_plan::{Action, Bytes, StageId};

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

/// Takes the entries. Clones write into the same list.
#[derive(Clone)]
pub(super) struct Tracer {
    meter: Arc<dyn Meter>,
    entries: Arc<Mutex<Vec<TraceEntry>>>,
}

impl Tracer {
    pub(super) fn start(meter: Arc<dyn Meter>) -> Self {
        meter.read();
        meter.start_interval();
        Self {
            meter,
            entries: Arc::default(),
        }
    }

    pub(super) fn record(&self, action: Action) {
        let memory = self.meter.read();
        let entry = TraceEntry {
            action,
            in_use_bytes: memory.in_use_bytes,
            peak_bytes: memory.peak_in_use_bytes,
        };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        match entries.last_mut() {
            // A value of several tensors passes a border once for each.
            Some(last) if last.action == action => {
                last.in_use_bytes = entry.in_use_bytes;
                last.peak_bytes = last.peak_bytes.max(entry.peak_bytes);
            }
            _ => entries.push(entry),
        }
        drop(entries);
        self.meter.start_interval();
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
        let tracer = self.clone();
        let call = BorderCall::new(move || tracer.record(Action::Backward(StageId(stage))));
        value.map(&mut Border(call))
    }

    pub(super) fn finish(&self) -> Vec<TraceEntry> {
        std::mem::take(&mut *self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").finish_non_exhaustive()
    }
}
