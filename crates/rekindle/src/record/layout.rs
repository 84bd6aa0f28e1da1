//! Groups operations of a recording that have the same cost: those of one kind whose inputs have the same memory
//! layout. For example, a product with a transposed matrix runs another kernel than one with a contiguous matrix.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use burn_ir::{IrVisitorMut, ScalarIr};

use super::{operation::may_be_view, operations::Kind, recording::Recording};

/// The operations of a recording, grouped by cost.
#[derive(Clone, PartialEq)]
pub(super) struct Alike {
    /// Each operation's group.
    pub(super) group: Vec<u32>,
    /// The first operation of each group.
    pub(super) first: Vec<usize>,
    /// Each group's kind, shapes and layouts, as a hash that is the same in every recording.
    pub(super) keys: Vec<u64>,
}

impl Alike {
    pub(super) fn new(recording: &Recording) -> Self {
        let kinds: Vec<u64> = recording.operations.kinds().iter().map(key).collect();
        // A layout is 0 for a contiguous tensor, else the key of the operation that made the view.
        let mut layouts = vec![0_u64; recording.tensors.len()];
        let mut known: HashMap<u64, u32> = HashMap::new();
        let (mut first, mut keys) = (Vec::new(), Vec::new());
        let operations = recording.operations.iter();
        let operations = operations.zip(recording.operations.kind_numbers());
        let group = operations.enumerate().map(|(number, (one, kind))| {
            let mut hasher = DefaultHasher::new();
            kinds[kind as usize].hash(&mut hasher);
            for input in one.inputs() {
                layouts[input].hash(&mut hasher);
            }
            let key = hasher.finish();
            if may_be_view(&one.kind.name) {
                for output in one.outputs() {
                    layouts[output] = key;
                }
            }
            *known.entry(key).or_insert_with(|| {
                first.push(number);
                keys.push(key);
                first.len() as u32 - 1
            })
        });
        Self {
            group: group.collect(),
            first,
            keys,
        }
    }
}

/// A hash of an operation with its shapes, and without a number that only scales or shifts: it changes no cost. Others, such
/// as an exponent, choose another kernel.
fn key(kind: &Kind) -> u64 {
    struct WithoutNumbers;
    impl IrVisitorMut for WithoutNumbers {
        fn visit_scalar_mut(&mut self, scalar: &mut ScalarIr) {
            *scalar = ScalarIr::Float(0.0);
        }
    }
    let mut hasher = DefaultHasher::new();
    match kind.name.as_str() {
        "MulScalar" | "DivScalar" | "AddScalar" | "SubScalar" => {
            let mut operation = kind.operation.clone();
            operation.visit_mut(&mut WithoutNumbers);
            operation.hash(&mut hasher);
        }
        _ => kind.operation.hash(&mut hasher),
    }
    hasher.finish()
}
