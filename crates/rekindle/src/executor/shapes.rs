//! The shapes of what a stage gives: the same when it is computed again as at first.
//!
//! A layer that gives another output the second time (random numbers that no seed reaches, state that a forward
//! changes) makes gradients that belong to no run at all. As PyTorch's checkpointing does, shapes are compared; values are
//! not.

use burn::tensor::{Bool, Int, Tensor};

use super::error::StepError;
use crate::activation::{Activation, ActivationVisitor};

/// The shapes of an activation's tensors.
pub(super) type Shapes = Vec<Vec<usize>>;

/// The shapes of each stage's first output in a step.
pub(super) struct FirstShapes(Vec<Option<Shapes>>);

impl FirstShapes {
    pub(super) fn new(stages: usize) -> Self {
        Self(vec![None; stages])
    }

    /// A stage has run, for the first time or again.
    pub(super) fn ran<A: Activation>(&mut self, stage: usize, output: &A) -> Result<(), StepError> {
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
pub(super) fn shapes<A: Activation>(value: &A) -> Shapes {
    struct Look(Shapes);
    impl ActivationVisitor for Look {
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
