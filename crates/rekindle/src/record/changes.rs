//! The tensors that each span of a step's program makes and frees, by shape and type.

use std::{cmp::Reverse, collections::BTreeSet};

use rekindle_plan::{
    Bytes,
    graph::{Change, Span, TensorId, changes},
};
use serde::Serialize;

use super::{planned::PlannedRecording, recording::Recording};

/// Tensors of one shape and type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AlikeTensors {
    /// The shape of each.
    pub shape: Vec<usize>,
    /// The type of their values, such as `f32`.
    pub dtype: String,
    /// How many they are.
    pub count: usize,
    /// Bytes of the values of all of them.
    pub bytes: Bytes,
}

/// What a span changes on the device: see [`Change`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanChange {
    /// The span; `None` for the update after the step, which frees the gradients that the step returned.
    pub span: Option<Span>,
    /// Those that are there after it and were not before it, most bytes first.
    pub appeared: Vec<AlikeTensors>,
    /// Those that were there before it and are not after it, most bytes first.
    pub went: Vec<AlikeTensors>,
}

impl<A> PlannedRecording<A> {
    /// What each span changes, and what the update after them does.
    pub(super) fn changes(&self) -> Vec<SpanChange> {
        let graph = self.linked();
        let recording = &self.measured.recording;
        let roots = graph.roots();
        let gradients: BTreeSet<TensorId> = recording.gradients().map(|one| roots[one]).collect();
        let update = Change {
            appeared: Vec::new(),
            went: Vec::from_iter(gradients),
        };
        let mut all = changes(&graph, &self.prepared.program, &self.spans);
        all.push(update);
        let spans = self.spans.iter().cloned().map(Some).chain([None]);
        let changes = spans.zip(all).map(|(span, change)| SpanChange {
            span,
            appeared: alike(recording, change.appeared),
            went: alike(recording, change.went),
        });
        changes.collect()
    }
}

/// Tensors of a recording, by shape and type.
fn alike(recording: &Recording, tensors: Vec<TensorId>) -> Vec<AlikeTensors> {
    let mut alike: Vec<AlikeTensors> = Vec::new();
    for tensor in tensors.into_iter().map(TensorId::index) {
        let shape = recording.tensors.shape(tensor).as_slice();
        let dtype = recording.tensors.dtype(tensor).name();
        let bytes = Bytes(recording.tensors.value_bytes(tensor));
        let same = |one: &&mut AlikeTensors| one.shape == shape && one.dtype == dtype;
        match alike.iter_mut().find(same) {
            Some(known) => {
                known.count += 1;
                known.bytes += bytes;
            }
            None => alike.push(AlikeTensors {
                shape: shape.to_vec(),
                dtype: dtype.to_owned(),
                count: 1,
                bytes,
            }),
        }
    }
    alike.sort_by_key(|one| Reverse(one.bytes));
    alike
}
