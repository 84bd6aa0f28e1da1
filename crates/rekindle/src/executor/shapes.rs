//! Compares the output shapes of a stage's recompute with those of its first run.
//!
//! A layer whose recompute gives another output (unseeded random numbers, state that a forward pass changes) leads to
//! wrong gradients. As in PyTorch's checkpointing, shapes are compared and values are not.

use burn::tensor::{Bool, Int, Tensor};

use super::error::StepError;
use crate::tensor_tree::{TensorTree, TensorVisitor};

/// The shapes of an activation's tensors.
pub(super) type Shapes = Vec<Vec<usize>>;

/// The shapes of each stage's first output in a step.
pub(super) struct FirstShapes(Vec<Option<Shapes>>);

impl FirstShapes {
    pub(super) fn new(stages: usize) -> Self {
        Self(vec![None; stages])
    }

    /// Records the output shapes of a stage's first run; fails if a recompute's shapes differ.
    pub(super) fn ran<A: TensorTree>(&mut self, stage: usize, output: &A) -> Result<(), StepError> {
        let shapes = shapes::<A>(output);
        match &self.0[stage] {
            None => self.0[stage] = Some(shapes),
            Some(first) if *first != shapes => {
                return Err(StepError::RecomputedShape {
                    stage,
                    first: first.clone(),
                    again: shapes,
                });
            }
            Some(_) => {}
        }
        Ok(())
    }
}

/// The shapes of a value's tensors.
pub(super) fn shapes<A: TensorTree>(value: &A) -> Shapes {
    struct Look(Shapes);
    impl TensorVisitor for Look {
        fn float<const D: usize>(&mut self, tensor: &Tensor<D>) {
            self.0.push(tensor.dims().to_vec());
        }
        fn int<const D: usize>(&mut self, tensor: &Tensor<D, Int>) {
            self.0.push(tensor.dims().to_vec());
        }
        fn bool<const D: usize>(&mut self, tensor: &Tensor<D, Bool>) {
            self.0.push(tensor.dims().to_vec());
        }
    }
    let mut look = Look(Vec::new());
    value.visit(&mut look);
    look.0
}
