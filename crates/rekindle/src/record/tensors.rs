//! The tensors of a recording, by number: 4 bytes per tensor, and each distinct shape and type once.

use burn::tensor::{DType, Shape};
use burn_ir::{TensorId, TensorIr, TensorStatus};
use rustc_hash::FxHashMap;

/// All tensors of a recording.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tensors {
    /// The distinct shapes and types.
    formats: Vec<(Shape, DType)>,
    /// The index in `formats`, by tensor.
    of: Vec<u32>,
}

impl Tensors {
    /// The number of tensors.
    pub(crate) fn len(&self) -> usize {
        self.of.len()
    }

    /// A tensor's shape.
    pub(crate) fn shape(&self, tensor: usize) -> &Shape {
        &self.format(tensor).0
    }

    /// A tensor's number type.
    pub(crate) fn dtype(&self, tensor: usize) -> DType {
        self.format(tensor).1
    }

    /// Bytes of a tensor's numbers.
    pub(crate) fn value_bytes(&self, tensor: usize) -> u64 {
        let (shape, dtype) = self.format(tensor);
        (shape.num_elements() * dtype.size()) as u64
    }

    /// burn's description of a tensor for an interpreter, marked as the last read.
    pub(crate) fn last_read(&self, tensor: usize) -> TensorIr {
        let (shape, dtype) = self.format(tensor).clone();
        TensorIr {
            id: TensorId::new(tensor as u64),
            shape,
            status: TensorStatus::ReadWrite,
            dtype,
        }
    }

    fn format(&self, tensor: usize) -> &(Shape, DType) {
        &self.formats[self.of[tensor] as usize]
    }
}

/// Numbers tensors in order of appearance.
#[derive(Default)]
pub(super) struct Numbering {
    known: FxHashMap<TensorId, u32>,
    formats: FxHashMap<(Shape, DType), u32>,
    tensors: Tensors,
}

impl Numbering {
    /// The number of a tensor, the next one if it is new.
    pub(super) fn add(&mut self, id: TensorId, shape: &Shape, dtype: DType) -> u32 {
        let next = self.tensors.of.len() as u32;
        let number = *self.known.entry(id).or_insert(next);
        if number == next {
            let all = &mut self.tensors.formats;
            let format = (shape.clone(), dtype);
            let format = *self.formats.entry(format).or_insert_with_key(|format| {
                all.push(format.clone());
                all.len() as u32 - 1
            });
            self.tensors.of.push(format);
        }
        number
    }

    /// The number of a tensor that was added.
    pub(super) fn number(&self, id: TensorId) -> usize {
        self.known[&id] as usize
    }

    /// The tensors that were added.
    pub(super) fn finish(mut self) -> Tensors {
        self.tensors.of.shrink_to_fit();
        self.tensors.formats.shrink_to_fit();
        self.tensors
    }
}
