//! The operations of a recording, packed. burn's description of an operation takes 616 bytes and more, and a step of a
//! thousand equal layers has thousands of them: the common part of equal operations is stored once.
//!
//! | stored per | content | bytes |
//! |---|---|---|
//! | distinct operation ([`Kind`]) | burn's description, its tensors numbered by their *place* in it | about 750 |
//! | operation | its kind, stage, and part of the step | 20 |
//! | tensor of an operation | its number in the recording | 4 |
//!
//! A tensor's place is its rank among the operation's distinct tensors in order of appearance, so `x * x` and `x * y`
//! are of two kinds. Operations whose scalars differ are of different kinds too. [`RecordedOperation::filled`] makes burn's
//! description again, for the interpreter.

use std::hash::{Hash, Hasher};

use burn_ir::{IrVisitorMut, OperationIr, TensorId, TensorIr, TensorStatus};
use rustc_hash::{FxHashMap, FxHasher};
use siphasher::sip::SipHasher13;

use super::{
    operation::{draws, flops, hash_with, may_be_view, name_of},
    tensors::Numbering,
};
use crate::reduce::synchronised::is_mean_over_ranks;

/// The common part of equal operations.
#[derive(Debug, Clone)]
pub(crate) struct Kind {
    /// burn's name: `Matmul`.
    pub(crate) name: String,
    /// Whether it draws random numbers.
    pub(crate) draws: bool,
    /// Whether it is a mean over ranks.
    pub(crate) synchronises: bool,
    /// burn's description; a tensor's id is its place, and its status has no meaning.
    pub(crate) operation: OperationIr,
    /// Of `operation`: unlike its equality, it tells 0 from -0, and NaN is itself.
    hash: u64,
    /// The places of its inputs, in burn's order; a tensor that it reads twice occurs twice.
    inputs: Box<[u32]>,
    /// The places of its outputs.
    outputs: Box<[u32]>,
}

impl Kind {
    fn new(operation: OperationIr) -> Self {
        let place = |tensor: &TensorIr| tensor.id.value() as u32;
        Self {
            name: name_of(&operation),
            draws: draws(&operation),
            synchronises: is_mean_over_ranks(&operation),
            hash: hash_with(&operation, SipHasher13::new()),
            inputs: operation.inputs().map(place).collect(),
            outputs: operation.outputs().map(place).collect(),
            operation,
        }
    }

    /// Whether a GPU tries kernels for it: if it does more than a little for each number that it makes.
    pub(crate) fn is_tried(&self) -> bool {
        let made = self.operation.outputs();
        let made: usize = made.map(|one| one.shape.num_elements()).sum();
        !may_be_view(&self.name) && flops(&self.name, &self.operation) > made as f64
    }

    /// Whether it makes the tensor at a place.
    fn makes(&self, place: u32) -> bool {
        self.outputs.contains(&place)
    }

    /// Whether it reads the tensor at a place exactly once: then it may free it.
    fn reads_once(&self, place: u32) -> bool {
        let reads = self.inputs.iter().filter(|&&input| input == place);
        !self.makes(place) && reads.count() == 1
    }
}

/// The operations, in recorded order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Operations {
    kinds: Vec<Kind>,
    entries: Vec<Entry>,
    /// The tensors of all operations, one operation after another, by place.
    tensors: Vec<u32>,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Entry {
    kind: u32,
    /// The end of its tensors in the list; they begin where those of the previous operation end.
    end: u32,
    stage: Option<u32>,
    backward: bool,
}

/// One operation of a recording.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordedOperation<'a> {
    /// What it has in common with others.
    pub(crate) kind: &'a Kind,
    /// The marked stage that it belongs to, if the model has marks. In the backward pass, only operations that make a
    /// parameter's gradient have one.
    pub(crate) stage: Option<u32>,
    /// Recorded after the loss.
    pub(crate) backward: bool,
    /// Its tensors' numbers, by place.
    tensors: &'a [u32],
}

impl Operations {
    /// The number of operations.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Sets the stage of an operation.
    pub(super) fn set_stage(&mut self, number: usize, stage: u32) {
        self.entries[number].stage = Some(stage);
    }

    /// The distinct operations.
    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// The index in [`kinds`](Self::kinds) of each operation's kind.
    pub(crate) fn kind_numbers(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.entries.iter().map(|entry| entry.kind)
    }

    /// The operation with this number.
    ///
    /// # Panics
    /// If there is no such operation.
    pub(crate) fn get(&self, number: usize) -> RecordedOperation<'_> {
        let entry = self.entries[number];
        let start = match number {
            0 => 0,
            _ => self.entries[number - 1].end,
        };
        RecordedOperation {
            kind: &self.kinds[entry.kind as usize],
            stage: entry.stage,
            backward: entry.backward,
            tensors: &self.tensors[start as usize..entry.end as usize],
        }
    }

    fn hashes(&self) -> impl Iterator<Item = u64> {
        self.kinds.iter().map(|kind| kind.hash)
    }

    /// Whether these are the same operations on the same tensors, whatever their shapes and numbers.
    pub(super) fn alike(&self, other: &Self) -> bool {
        let same = |(one, other_one): (&Entry, &Entry)| {
            let kind = &self.kinds[one.kind as usize];
            let of_other = &other.kinds[other_one.kind as usize];
            (one.end, one.stage, one.backward)
                == (other_one.end, other_one.stage, other_one.backward)
                && kind.name == of_other.name
                && kind.inputs == of_other.inputs
                && kind.outputs == of_other.outputs
        };
        self.tensors == other.tensors
            && self.len() == other.len()
            && self.entries.iter().zip(&other.entries).all(same)
    }

    /// All, in recorded order.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = RecordedOperation<'_>> {
        (0..self.len()).map(|number| self.get(number))
    }
}

/// The same operations on the same tensors.
impl PartialEq for Operations {
    fn eq(&self, other: &Self) -> bool {
        self.hashes().eq(other.hashes())
            && self.entries == other.entries
            && self.tensors == other.tensors
    }
}

impl Hash for Operations {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hashes().for_each(|hash| hash.hash(state));
        (&self.entries, &self.tensors).hash(state);
    }
}

impl<'a> RecordedOperation<'a> {
    /// The numbers of its inputs, in burn's order.
    pub(crate) fn inputs(self) -> impl ExactSizeIterator<Item = usize> + use<'a> {
        self.at(&self.kind.inputs)
    }

    /// The numbers of its outputs.
    pub(crate) fn outputs(self) -> impl ExactSizeIterator<Item = usize> + use<'a> {
        self.at(&self.kind.outputs)
    }

    /// The numbers of all its tensors, each once.
    pub(crate) fn tensors(self) -> impl ExactSizeIterator<Item = usize> + use<'a> {
        self.tensors.iter().map(|&tensor| tensor as usize)
    }

    fn at(self, places: &'a [u32]) -> impl ExactSizeIterator<Item = usize> + use<'a> {
        let tensors = self.tensors;
        places
            .iter()
            .map(move |&place| tensors[place as usize] as usize)
    }

    /// Whether burn's operation itself can free a tensor, or reuse its storage: an input that it reads once.
    pub(crate) fn can_free(self, tensor: usize) -> bool {
        let place = self.tensors().position(|one| one == tensor);
        place.is_some_and(|place| self.kind.reads_once(place as u32))
    }

    /// burn's description, with the tensors' numbers as ids; frees those that it [can free](Self::can_free) and that
    /// `frees` names.
    pub(crate) fn filled(self, frees: impl Fn(usize) -> bool) -> OperationIr {
        struct Fill<'a, F> {
            recorded: RecordedOperation<'a>,
            frees: F,
        }
        impl<F: Fn(usize) -> bool> IrVisitorMut for Fill<'_, F> {
            fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
                let place = tensor.id.value() as u32;
                let number = self.recorded.tensors[place as usize];
                let kind = self.recorded.kind;
                tensor.id = TensorId::new(u64::from(number));
                tensor.status = if kind.makes(place) {
                    TensorStatus::NotInit
                } else if (self.frees)(number as usize) && kind.reads_once(place) {
                    TensorStatus::ReadWrite
                } else {
                    TensorStatus::ReadOnly
                };
            }
        }
        let mut operation = self.kind.operation.clone();
        operation.visit_mut(&mut Fill {
            recorded: self,
            frees,
        });
        operation
    }
}

/// Packs operations one by one.
pub(super) struct Packing {
    packed: Operations,
    /// The latest kind of each hash.
    known: FxHashMap<u64, u32>,
}

impl Packing {
    /// With capacity for this many operations.
    pub(super) fn new(operations: usize) -> Self {
        Self {
            packed: Operations {
                entries: Vec::with_capacity(operations),
                ..Operations::default()
            },
            known: FxHashMap::default(),
        }
    }

    /// Adds an operation, with its tensors by burn's ids.
    pub(super) fn add(
        &mut self,
        mut operation: OperationIr,
        stage: Option<u32>,
        backward: bool,
        numbering: &mut Numbering,
    ) {
        let tensors = &mut self.packed.tensors;
        operation.visit_mut(&mut ByPlace {
            start: tensors.len(),
            tensors,
            numbering,
        });
        let end = self.packed.tensors.len() as u32;
        let kind = self.kind(operation);
        self.packed.entries.push(Entry {
            kind,
            end,
            stage,
            backward,
        });
    }

    /// The kind of an operation whose tensors are numbered by place. If an equal kind is not found, because another
    /// kind has the same hash or a scalar is NaN and so equals nothing, the kind is stored again.
    fn kind(&mut self, operation: OperationIr) -> u32 {
        let kinds = &mut self.packed.kinds;
        let hash = hash_with(&operation, FxHasher::default());
        let known = self.known.get(&hash).copied();
        if let Some(known) = known.filter(|&known| kinds[known as usize].operation == operation) {
            return known;
        }
        let number = kinds.len() as u32;
        kinds.push(Kind::new(operation));
        self.known.insert(hash, number);
        number
    }

    /// The packed operations.
    pub(super) fn finish(mut self) -> Operations {
        self.packed.tensors.shrink_to_fit();
        self.packed.kinds.shrink_to_fit();
        self.packed
    }
}

/// Replaces the ids of an operation's tensors by their places, and lists their numbers.
struct ByPlace<'a> {
    numbering: &'a mut Numbering,
    tensors: &'a mut Vec<u32>,
    /// The start of the operation's tensors in the list.
    start: usize,
}

impl IrVisitorMut for ByPlace<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        let number = self.numbering.add(tensor.id, &tensor.shape, tensor.dtype);
        let known = &self.tensors[self.start..];
        let place = match known.iter().position(|&one| one == number) {
            Some(place) => place,
            None => {
                self.tensors.push(number);
                self.tensors.len() - 1 - self.start
            }
        };
        tensor.id = TensorId::new(place as u64);
        tensor.status = TensorStatus::NotInit;
    }
}
