//! Compares what a stage gives when it is computed again with what it gave first.
//!
//! A layer that gives another output the second time (random numbers that no seed reaches, state that a forward
//! changes) makes gradients that belong to no run at all, silently. PyTorch's checkpointing compares shapes and types;
//! here values are compared as well, on request: three sums over each tensor, taken on the device.
//!
//! Costs, for values: one pass over each output and up to as many bytes as one output while it lasts; the sums wait on
//! the device, and are read once, when the step is over.

use burn::tensor::{
    Bool, Int, Tensor,
    backend::{AutodiffBackend, Backend},
};
use serde::{Deserialize, Serialize};

use super::StepError;
use crate::activation::{Activation, ActivationVisitor};

/// How closely recomputed outputs are compared with the first ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recheck {
    /// Not at all.
    Off,
    /// Ranks and shapes of all tensors.
    #[default]
    Shapes,
    /// And the values of float tensors, which must also be finite.
    Values,
}

/// Sums may be taken in another order the second time: relative to the sum of magnitudes.
const TOLERANCE: f32 = 1e-5;

/// What is compared of one output.
struct Outline<B: Backend> {
    shapes: Vec<Vec<usize>>,
    /// Of each float tensor: the sum, the sum of magnitudes, the sum of squares.
    sums: Vec<Tensor<B, 1>>,
}

/// The outputs of one step.
pub(super) struct Rechecks<B: AutodiffBackend> {
    mode: Recheck,
    first: Vec<Option<Outline<B::InnerBackend>>>,
    /// Stage, and the sums of a later run.
    later: Vec<(usize, Vec<Tensor<B::InnerBackend, 1>>)>,
}

impl<B: AutodiffBackend> Rechecks<B> {
    pub(super) fn new(mode: Recheck, stages: usize) -> Self {
        Self {
            mode,
            first: (0..stages).map(|_| None).collect(),
            later: Vec::new(),
        }
    }

    /// A stage has run, for the first time or again.
    pub(super) fn ran<A: Activation<B>>(
        &mut self,
        stage: usize,
        output: &A,
    ) -> Result<(), StepError> {
        if self.mode == Recheck::Off {
            return Ok(());
        }
        let outline = outline::<B, A>(output, self.mode);
        let Some(first) = &self.first[stage] else {
            self.first[stage] = Some(outline);
            return Ok(());
        };
        if first.shapes != outline.shapes {
            return Err(StepError::RecomputedShape {
                stage,
                first: first.shapes.clone(),
                again: outline.shapes,
            });
        }
        self.later.push((stage, outline.sums));
        Ok(())
    }

    /// Compares the sums. Reads them from the device.
    pub(super) fn finish(&self) -> Result<(), StepError> {
        if self.mode != Recheck::Values {
            return Ok(());
        }
        let read = |sums: &[Tensor<B::InnerBackend, 1>]| -> Vec<f32> {
            sums.iter()
                .flat_map(|sums| sums.to_data().iter::<f32>().collect::<Vec<_>>())
                .collect()
        };
        let first: Vec<Vec<f32>> = self
            .first
            .iter()
            .map(|outline| {
                outline
                    .as_ref()
                    .map_or(Vec::new(), |outline| read(&outline.sums))
            })
            .collect();
        if let Some(stage) = first
            .iter()
            .position(|sums| sums.iter().any(|sum| !sum.is_finite()))
        {
            return Err(StepError::NotFinite { stage });
        }
        for (stage, again) in &self.later {
            let again = read(again);
            let differs = first[*stage]
                .chunks(3)
                .zip(again.chunks(3))
                .any(|(first, again)| !alike(first, again));
            if differs {
                return Err(StepError::RecomputedValues { stage: *stage });
            }
        }
        Ok(())
    }
}

fn alike(first: &[f32], again: &[f32]) -> bool {
    let [_, magnitudes, squares] = *first else {
        return true;
    };
    let scales = [magnitudes, magnitudes, squares];
    first
        .iter()
        .zip(again)
        .zip(scales)
        .all(|((first, again), scale)| (first - again).abs() <= TOLERANCE * scale)
}

/// The shapes of a value's tensors.
pub(super) fn shapes<B: AutodiffBackend, A: Activation<B>>(value: &A) -> Vec<Vec<usize>> {
    outline::<B, A>(value, Recheck::Shapes).shapes
}

fn outline<B: AutodiffBackend, A: Activation<B>>(
    output: &A,
    mode: Recheck,
) -> Outline<B::InnerBackend> {
    struct Look<B: AutodiffBackend> {
        mode: Recheck,
        outline: Outline<B::InnerBackend>,
    }
    impl<B: AutodiffBackend> ActivationVisitor<B> for Look<B> {
        fn float<const D: usize>(&mut self, tensor: &Tensor<B, D>) {
            self.outline.shapes.push(tensor.dims().to_vec());
            if self.mode == Recheck::Values {
                let values = tensor.clone().inner();
                let sum = values.clone().sum();
                let magnitudes = values.clone().abs().sum();
                let squares = (values.clone() * values).sum();
                self.outline
                    .sums
                    .push(Tensor::cat(vec![sum, magnitudes, squares], 0));
            }
        }
        fn int<const D: usize>(&mut self, tensor: &Tensor<B, D, Int>) {
            self.outline.shapes.push(tensor.dims().to_vec());
        }
        fn bool<const D: usize>(&mut self, tensor: &Tensor<B, D, Bool>) {
            self.outline.shapes.push(tensor.dims().to_vec());
        }
    }
    let mut look = Look {
        mode,
        outline: Outline {
            shapes: Vec::new(),
            sums: Vec::new(),
        },
    };
    output.visit(&mut look);
    look.outline
}
