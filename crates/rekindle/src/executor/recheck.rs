//! Compares what a stage gives when it is computed again with what it gave first.
//!
//! A layer that gives another output the second time (random numbers that no seed reaches, state that a forward
//! changes) makes gradients that belong to no run at all, silently. PyTorch's checkpointing compares shapes and types;
//! here values are compared as well, on request: three sums over each tensor, taken on the device.
//!
//! Costs, for values: one pass over each output and up to [`Recheck::temp_bytes`] while it lasts; the sums wait on the
//! device, and are read once, when the step is over. Sums are taken in `f32`, whatever the output is: `f16` ends at
//! 65,504.

use burn::tensor::{
    Bool, Int, Tensor,
    backend::{AutodiffBackend, Backend},
};
use rekindle_plan::Bytes;
use serde::{Deserialize, Serialize};

use super::StepError;
use crate::{
    activation::{Activation, ActivationVisitor},
    dtype::Dtype,
};

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

impl Recheck {
    /// What a comparison of an output of so many bytes takes while it lasts.
    #[must_use]
    pub fn temp_bytes(self, output: Bytes, dtype: Dtype) -> Bytes {
        match (self, dtype) {
            (Self::Off | Self::Shapes, _) => Bytes::ZERO,
            (Self::Values, Dtype::F32) => output,
            // The values in `f32`, and what is summed of them.
            (Self::Values, _) => Bytes(2 * output.0 / dtype.bytes() * Dtype::F32.bytes()),
        }
    }
}

/// Sums may be taken in another order the second time: relative to the sum of magnitudes.
const TOLERANCE: f32 = 1e-5;

/// On a GPU another kernel may be chosen the second time, and round single values to a neighbour. Such errors of `n`
/// values add up like a random walk: to so many units in the last place, divided by the root of `n`. Another dropout mask
/// differs by much more.
const ULPS: f64 = 4.0;

/// What is compared of one output.
struct Outline<B: Backend> {
    shapes: Vec<Vec<usize>>,
    /// Of each float tensor: the sum, the sum of magnitudes, the sum of squares.
    sums: Vec<Tensor<B, 1>>,
    /// How far each of these may differ, relative to the sum of magnitudes.
    tolerances: Vec<f32>,
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
            let tolerances = self.first[*stage]
                .iter()
                .flat_map(|outline| &outline.tolerances);
            let differs = first[*stage]
                .chunks(3)
                .zip(again.chunks(3))
                .zip(tolerances)
                .any(|((first, again), tolerance)| !alike(first, again, *tolerance));
            if differs {
                return Err(StepError::RecomputedValues { stage: *stage });
            }
        }
        Ok(())
    }
}

fn alike(first: &[f32], again: &[f32], tolerance: f32) -> bool {
    let [_, magnitudes, squares] = *first else {
        return true;
    };
    let scales = [magnitudes, magnitudes, squares];
    first
        .iter()
        .zip(again)
        .zip(scales)
        .all(|((first, again), scale)| (first - again).abs() <= tolerance * scale)
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
                let epsilon = tensor.dtype().finfo().map_or(0.0, |info| info.epsilon);
                let count = tensor.shape().num_elements().max(1) as f64;
                let rounding = ULPS * epsilon / count.sqrt();
                self.outline.tolerances.push(TOLERANCE.max(rounding as f32));
                let values = tensor.clone().inner().cast(Dtype::F32.float());
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
            tolerances: Vec::new(),
        },
    };
    output.visit(&mut look);
    look.outline
}
