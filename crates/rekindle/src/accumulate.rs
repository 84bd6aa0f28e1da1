//! Parts of a batch that run one after the other, for one update: gradient accumulation.
//!
//! ```
//! # use burn::{nn::{Linear, LinearConfig}, optim::SgdConfig, prelude::*, tensor::Distribution};
//! # #[global_allocator]
//! # static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
//! # let device = Device::flex().autodiff();
//! # let mut model = LinearConfig::new(8, 8).init(&device);
//! # let mut optimizer = SgdConfig::new().init();
//! # let loss = |layer: &Linear, input: Tensor<2>| layer.forward(input).square().mean();
//! # let batch = || Tensor::<2>::random([64, 8], Distribution::Default, &device);
//! let part = |batch: &Tensor<2>, part: usize| batch.clone().narrow(0, 16 * part, 16);
//! let step = rekindle::record(&model, &part(&batch(), 0), loss)?
//!     .with_parts(4)
//!     .with_optimizer(&optimizer)
//!     .within("64MiB")?;
//! for _ in 0..3 {
//!     let batch = batch();
//!     let output = step.run_parts(&model, (0..4).map(|number| part(&batch, number)))?;
//!     model = optimizer.step(1e-2, model, output.gradients);
//! }
//! # Ok::<(), rekindle::record::RecordError>(())
//! ```
//!
//! With losses `l_i`, gradients `g_i` and weights `w_i` of the parts, what an update takes is
//!
//! ```text
//! l = sum_i w_i l_i / sum_i w_i        g = sum_i w_i g_i / sum_i w_i
//! ```
//!
//! - **Means.** [`run_parts`](crate::record::Step::run_parts) takes equal parts: all weights are 1. `l` and `g` are those of the
//!   whole batch, but for rounding, if the loss is a mean over samples: the closure is the same as for the whole batch,
//!   without PyTorch's `loss / accumulation_steps`.
//! - **Unequal parts**, such as a mean over the tokens that are not padding: [`Sum`] takes weights.
//! - **Numbers.** Parts are added in their order, so that a step repeats bit for bit. `f16` and `bf16` are added in `f32`, and
//!   the gradients stay so: [`MasterWeights`](crate::MasterWeights) takes them.
//! - **Memory.** `with_parts` counts the sum, which is held while the next part runs. The batch is yours: an iterator that
//!   makes each part when it is asked for holds one at a time.
//! - **Layers.** Each part has its own batch statistics and random numbers.
//! - **Ranks** exchange the gradients of each part. **An update in the backward pass** leaves no gradients to add.

use std::mem::replace;

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{DType, Shape, Tensor},
};

use crate::{
    Dtype,
    record::{Output, RecordError},
};

/// The weighted sum of the losses and gradients of parts that [`run`](crate::record::Step::run) one by one, after
/// [`with_parts`](crate::record::Recorded::with_parts):
///
/// ```text
/// let mut sum = Sum::default();
/// for part in parts {
///     let samples = part.dims()[0];
///     sum.add(&model, step.run(&model, part)?, samples as f64);
/// }
/// let output = sum.mean(&model)?;
/// ```
pub struct Sum<A>(Option<Weighted<A>>);

/// The sum. It still lacks the first factor, the weight of a single part, which stays as it is until another is added; and the
/// sum of the weights.
type Weighted<A> = (Output<Vec<A>>, f64, f64);

impl<A> Default for Sum<A> {
    fn default() -> Self {
        Self(None)
    }
}

impl<A> Sum<A> {
    /// Adds a part with a positive weight, such as its number of samples.
    pub fn add<M: Module>(&mut self, model: &M, part: Output<A>, weight: f64) {
        let mut all = part.map(|one| vec![one]);
        let Some((sum, factor, weights)) = self.0.take() else {
            self.0 = Some((all, weight, weight));
            return;
        };
        all.loss = wide(scaled(sum.loss, factor)) + wide(scaled(all.loss, weight));
        all.gradients = added(model, (sum.gradients, factor), (all.gradients, weight));
        let later = replace(&mut all.auxiliary, sum.auxiliary);
        all.auxiliary.extend(later);
        all.memory = all.memory.after(sum.memory);
        all.predicted_peak = all.predicted_peak.max(sum.predicted_peak);
        if let (Some(all), Some(before)) = (&mut all.exchange, sum.exchange) {
            all.added += before.added;
        }
        self.0 = Some((all, 1.0, weights + weight));
    }

    /// The weighted means of losses and gradients, and all auxiliary outputs. Peaks are the highest of all parts, phases and
    /// network operations those of the last.
    ///
    /// # Errors
    ///
    /// [`RecordError::Parts`] if nothing was added.
    pub fn mean<M: Module>(self, model: &M) -> Result<Output<Vec<A>>, RecordError> {
        let none = || RecordError::Parts("the batch has no part: give at least one".into());
        let (mut all, factor, weights) = self.0.ok_or_else(none)?;
        let share = factor / weights;
        // A single part is as it was.
        if share != 1.0 {
            all.loss = scaled(all.loss, share);
            all.gradients = added(model, (all.gradients, share), Default::default());
        }
        Ok(all)
    }
}

/// The sum of two sets of gradients, each times its factor.
fn added<M: Module>(
    model: &M,
    one: (GradientsParams, f64),
    other: (GradientsParams, f64),
) -> GradientsParams {
    struct Add {
        of: [(GradientsParams, f64); 2],
        all: GradientsParams,
    }
    impl ModuleVisitor for Add {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // Removed, so that the gradient of a parameter that is used twice is added once.
            let parts = self.of.each_mut().map(|(gradients, factor)| {
                let gradient = gradients.remove::<D>(param.id);
                gradient.map(|gradient| scaled(gradient, *factor))
            });
            let added = match parts {
                [Some(one), Some(other)] => Some(wide(one) + wide(other)),
                [one, other] => one.or(other),
            };
            if let Some(added) = added {
                self.all.register(param.id, added);
            }
        }
    }
    let mut add = Add {
        of: [one, other],
        all: GradientsParams::new(),
    };
    model.visit(&mut add);
    add.all
}

/// A tensor times a number.
fn scaled<const D: usize>(tensor: Tensor<D>, by: f64) -> Tensor<D> {
    if by == 1.0 { tensor } else { wide(tensor) * by }
}

/// Half types in `f32`: their sums would lose what is small beside them, and overflow sooner.
fn wide<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => tensor.cast(Dtype::F32.float()),
        _ => tensor,
    }
}

/// Fails if the part of this number, from 1 on, is more than planned, or has other shapes than the first.
pub(crate) fn check(
    part: usize,
    planned: usize,
    [own, first]: [&[(Shape, DType)]; 2],
) -> Result<(), RecordError> {
    let shapes = |all: &[(Shape, DType)]| all.iter().map(|one| one.0.to_vec()).collect::<Vec<_>>();
    Err(RecordError::Parts(if part > planned {
        format!(
            "the batch has more parts than the {planned} of its step: record it `with_parts` of their number"
        )
    } else if own != first {
        format!(
            "part {part} of the batch has the shapes {:?}, the first part {:?}: cut the batch into equal parts, or add \
             unequal ones to an `accumulate::Sum` with their weights",
            shapes(own),
            shapes(first)
        )
    } else {
        return Ok(());
    }))
}
