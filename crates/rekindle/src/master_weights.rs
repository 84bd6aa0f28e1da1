//! Mixed-precision training's `f32` copy of the parameters: [`MasterWeights`].
//!
//! A parameter of `bf16` has 8 significant bits, one of `f16` 11: an update below half a unit in its last place, that
//! is below `2^-9` or `2^-12` of its value, is lost, even if it repeats many times. So the optimizer keeps each
//! parameter in `f32`, updates that copy, and gives the model its rounded value (Micikevicius et al. 2018, arXiv
//! 1710.03740, section 3.1).
//!
//! The copy is part of the optimizer's state: it is saved in records and counted in the state's size, 4 bytes for each
//! number of a half type. `f32` parameters need no copy.

use burn::{
    optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource, join_path},
    tensor::{DType, Device, Tensor},
};

use crate::Dtype;

/// Names in records.
const MASTER: &str = "master";
const INNER: &str = "inner";

/// An optimizer that keeps an `f32` copy of each `f16` and `bf16` parameter, and computes updates and state in `f32`.
///
/// ```
/// # use burn::{nn::LinearConfig, optim::{GradientsParams, ModuleOptimizer, SgdConfig}, prelude::*, tensor::DType};
/// use rekindle::{Dtype, MasterWeights};
///
/// # let device = Device::flex().autodiff();
/// let mut model = Dtype::Bf16.cast(LinearConfig::new(8, 8).init(&device));
/// let mut optimizer = ModuleOptimizer::from(MasterWeights::new(SgdConfig::new().build()));
/// # let input = Tensor::<2>::ones([4, 8], (&device, DType::BF16));
/// # let loss = model.forward(input).mean();
/// # let gradients = GradientsParams::from_grads(loss.backward(), &model);
/// model = optimizer.step(1e-2, model, gradients);
/// # assert_eq!(model.weight.val().dtype(), DType::BF16);
/// ```
///
/// If anything else changes a parameter's value (for example, loading weights), start with an optimizer without state:
/// the copy still holds the old value.
#[derive(Debug, Clone)]
pub struct MasterWeights<O>(O);

impl<O: Optimizer> MasterWeights<O> {
    /// Wraps `optimizer`, which then computes in `f32`.
    #[must_use]
    pub fn new(optimizer: O) -> Self {
        Self(optimizer)
    }
}

/// The state of [`MasterWeights`] for a parameter of rank `D`: the wrapped optimizer's, and the copy.
#[derive(Debug, Clone)]
pub struct MasterState<S, const D: usize> {
    /// The parameter in `f32`; `None` if its type is not a half type.
    master: Option<Tensor<D>>,
    inner: Option<S>,
}

impl<O: Optimizer> Optimizer for MasterWeights<O> {
    type State<const D: usize> = MasterState<O::State<D>, D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let (master, inner) = match state {
            Some(MasterState { master, inner }) => (master, inner),
            None => (None, None),
        };
        let dtype = parameter.dtype();
        if !matches!(dtype, DType::F16 | DType::BF16) {
            let (updated, inner) = self.0.step(rate, parameter, gradient, inner);
            let state = MasterState {
                master: None,
                inner,
            };
            return (updated, Some(state));
        }
        let master = match master {
            Some(master) => {
                // Free the old value before the new one is computed.
                drop(parameter);
                master
            }
            None => parameter.cast(Dtype::F32.float()),
        };
        let gradient = gradient.cast(Dtype::F32.float());
        let (master, inner) = self.0.step(rate, master, gradient, inner);
        let updated = master.clone().cast(dtype);
        let master = Some(master);
        (updated, Some(MasterState { master, inner }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        MasterState {
            master: state.master.map(|master| master.to_device(device)),
            inner: state.inner.map(|inner| O::to_device(inner, device)),
        }
    }
}

impl<S: RecordState, const D: usize> RecordState for MasterState<S, D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        if let Some(master) = &self.master {
            out.push_tensor(prefix, MASTER, master.clone().into_data());
        }
        if let Some(inner) = &self.inner {
            inner.state_flatten(&join_path(prefix, INNER), out);
        }
    }

    fn state_unflatten(prefix: &str, from: &mut StateSource, device: &Device) -> Option<Self> {
        let master = from.take_tensor(prefix, MASTER);
        Some(Self {
            master: master.map(|data| Tensor::from_data(data, (device, DType::F32))),
            inner: Some(S::state_unflatten(&join_path(prefix, INNER), from, device)?),
        })
    }
}
