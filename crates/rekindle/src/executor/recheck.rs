//! Compares what a stage gives when it is computed again with what it gave first.
//!
//! A layer that gives another output the second time (random numbers that no seed reaches, state that a forward
//! changes) makes gradients that belong to no run at all, silently. PyTorch's checkpointing compares shapes and types;
//! here values are compared as well, on request: by four sums over each tensor, taken on the device. Two of them weigh
//! values by where they are, so that the same values in another order are not the same.
//!
//! Costs, for values: some passes over each output and up to [`Recheck::temp_bytes`] while they last; the sums wait on
//! the device, and are read once, when the step is over. They are taken in `f32`, whatever the output is.

use burn::tensor::{Bool, DType, Int, Tensor};
use rekindle_plan::Bytes;
use serde::{Deserialize, Serialize};

use super::error::StepError;
use crate::{
    activation::{Activation, ActivationVisitor},
    dtype::Dtype,
};

/// How closely recomputed outputs are compared with the first ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Recheck {
    /// Not at all.
    Off,
    /// Shapes.
    #[default]
    Shapes,
    /// Shapes and values, which must also be finite.
    Values,
}

impl Recheck {
    /// What a comparison of an output of so many bytes takes while it lasts.
    #[must_use]
    pub fn temp_bytes(self, output: Bytes, dtype: Dtype) -> Bytes {
        match (self, dtype) {
            (Self::Off | Self::Shapes, _) => Bytes::ZERO,
            // The values, scaled; magnitudes take their place.
            (Self::Values, Dtype::F32) => output,
            // And before, in `f32`, by way of `f64`: burn's CPU backend casts so.
            (Self::Values, _) => Bytes(output.0 / dtype.bytes() * (8 + Dtype::F32.bytes())),
        }
    }
}

/// Sums may be taken in another order the second time: relative to the sum of magnitudes.
const TOLERANCE: f32 = 1e-5;

/// On a GPU another kernel may be chosen the second time, and round single values to a neighbour. Such errors of `n`
/// values add up like a random walk: to so many units in the last place, divided by the root of `n`. Another dropout mask
/// differs by much more.
const ULPS: f64 = 4.0;

/// Values are made smaller by this power of two, which changes none of their digits, so that no sum of finite ones
/// overflows: masks hold the largest numbers that there are.
const SCALE: f32 = 1.0 / (1u64 << 40) as f32;

/// What is compared of one output.
struct Outline {
    shapes: Vec<Vec<usize>>,
    /// The [`fingerprint`] of each tensor.
    sums: Vec<Tensor<1>>,
    /// How far each of these may differ, relative to the sum of magnitudes.
    tolerances: Vec<f32>,
}

/// The outputs of one step.
pub(super) struct Rechecks {
    mode: Recheck,
    first: Vec<Option<Outline>>,
    /// Stage, and the sums of a later run.
    later: Vec<(usize, Vec<Tensor<1>>)>,
}

impl Rechecks {
    pub(super) fn new(mode: Recheck, stages: usize) -> Self {
        Self {
            mode,
            first: (0..stages).map(|_| None).collect(),
            later: Vec::new(),
        }
    }

    /// A stage has run, for the first time or again.
    pub(super) fn ran<A: Activation>(&mut self, stage: usize, output: &A) -> Result<(), StepError> {
        if self.mode == Recheck::Off {
            return Ok(());
        }
        let outline = outline::<A>(output, self.mode);
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
        let read = |sums: &[Tensor<1>]| -> Vec<f32> {
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
                .chunks(SUMS)
                .zip(again.chunks(SUMS))
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
    let [_, _, _, magnitudes] = *first else {
        return true;
    };
    let most = tolerance * magnitudes;
    let mut differences = first.iter().zip(again).map(|(a, b)| (a - b).abs());
    differences.all(|difference| difference <= most)
}

/// How many sums a fingerprint has.
const SUMS: usize = 4;

/// Of a tensor's values: the sum, the sums weighted by their place along the first and along the last dimension, and
/// the sum of magnitudes.
fn fingerprint<const D: usize>(values: Tensor<D>) -> Tensor<1> {
    let dims = values.dims();
    let count = dims.iter().product::<usize>();
    let values = values.cast(Dtype::F32.float());
    if count == 0 {
        return Tensor::zeros([SUMS], (&values.device(), DType::F32));
    }
    let values = values.mul_scalar(SCALE).reshape([count]);
    let [first, last] = [dims[0], dims[D - 1]];
    let rows = values.clone().reshape([first, count / first]);
    let columns = values.clone().reshape([count / last, last]);
    let sums = vec![
        values.clone().sum(),
        weighted(rows.sum_dim(1).reshape([first])),
        weighted(columns.sum_dim(0).reshape([last])),
        values.abs().sum(),
    ];
    Tensor::cat(sums, 0)
}

/// The sum with weights between -1 and 1, of which no two that are near each other are alike.
fn weighted(values: Tensor<1>) -> Tensor<1> {
    let places = Tensor::<1, Int>::arange(0..values.dims()[0] as i64, &values.device());
    let weights = places
        .float()
        .cast(Dtype::F32.float())
        .add_scalar(1.0)
        .sin();
    (values * weights).sum()
}

/// The shapes of a value's tensors.
pub(super) fn shapes<A: Activation>(value: &A) -> Vec<Vec<usize>> {
    outline::<A>(value, Recheck::Shapes).shapes
}

fn outline<A: Activation>(output: &A, mode: Recheck) -> Outline {
    struct Look {
        mode: Recheck,
        outline: Outline,
    }
    impl ActivationVisitor for Look {
        fn float<const D: usize>(&mut self, tensor: &Tensor<D>) {
            let epsilon = tensor.dtype().finfo().map_or(0.0, |info| info.epsilon);
            self.see(tensor.dims(), epsilon, || tensor.clone().inner());
        }
        fn int<const D: usize>(&mut self, tensor: &Tensor<D, Int>) {
            self.see(tensor.dims(), 0.0, || tensor.clone().inner().float());
        }
        fn bool<const D: usize>(&mut self, tensor: &Tensor<D, Bool>) {
            self.see(tensor.dims(), 0.0, || tensor.clone().inner().float());
        }
    }
    impl Look {
        /// A tensor whose kernels may round by a share of `epsilon`.
        fn see<const D: usize>(
            &mut self,
            dims: [usize; D],
            epsilon: f64,
            values: impl FnOnce() -> Tensor<D>,
        ) {
            self.outline.shapes.push(dims.to_vec());
            if self.mode == Recheck::Values {
                let count = dims.iter().product::<usize>().max(1) as f64;
                let rounding = ULPS * epsilon / count.sqrt();
                self.outline.tolerances.push(TOLERANCE.max(rounding as f32));
                self.outline.sums.push(fingerprint(values()));
            }
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
