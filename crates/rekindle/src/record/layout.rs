//! Groups operations of a recording that have the same cost: those of one kind whose inputs have the same memory
//! layout. For example, a product with a transposed matrix runs another kernel than one with a contiguous matrix.

use std::collections::HashMap;

use super::{operation::may_be_view, recording::Recording};

/// The operations of a recording, grouped by cost.
pub(super) struct Alike {
    /// Each operation's group.
    pub(super) group: Vec<u32>,
    /// The first operation of each group.
    pub(super) first: Vec<usize>,
}

impl Alike {
    pub(super) fn new(recording: &Recording) -> Self {
        // A layout is 0 for a contiguous tensor, else 1 + the group of the operation that made the view.
        let mut layouts = vec![0_u32; recording.tensors.len()];
        let mut known: HashMap<(u32, Vec<u32>), u32> = HashMap::new();
        let mut first = Vec::new();
        let operations = recording.operations.iter();
        let operations = operations.zip(recording.operations.kind_numbers());
        let group = operations.enumerate().map(|(number, (one, kind))| {
            let inputs = one.inputs().map(|input| layouts[input]).collect();
            let group = *known.entry((kind, inputs)).or_insert_with(|| {
                first.push(number);
                first.len() as u32 - 1
            });
            if may_be_view(&one.kind.name) {
                for output in one.outputs() {
                    layouts[output] = group + 1;
                }
            }
            group
        });
        Self {
            group: group.collect(),
            first,
        }
    }
}
