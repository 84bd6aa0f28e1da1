//! burn's optimizers, chosen at run time, and clipping of all gradients together.
//!
//! Parameters are updated one after the other, each in `f32` whatever its type is: gradient, clipping, state and the
//! updated value are `f32`, and only the value that stays is rounded. The module [`dtype`](rekindle::dtype) says why.
//! Where parameters are `f32` the update is that of burn's [`ModuleOptimizer`](burn::optim::ModuleOptimizer), bit for
//! bit.
//!
//! Memory: for smaller types, copies of one parameter and of its gradient while it is updated.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
};

use burn::{
    grad_clipping::{GradientClipping, GradientClippingConfig},
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::{
        AdamConfig, AdamWConfig, DynOptimizer, DynState, GradientsParams, SgdConfig, StateSink,
        decay::WeightDecayConfig, momentum::MomentumConfig,
    },
    tensor::{Device, Tensor},
};

use super::{
    finite,
    run_dir_error::RunDirError,
    settings::{Clip, OptimizerSettings},
    snapshot::{Snapshot, SnapshotWriter},
};
use rekindle::{
    dtype::Dtype,
    record::{Leaf, Optimizer},
    sequential::Sequential,
};

/// Updates models as [`OptimizerSettings`] and [`Clip`] say.
pub struct AnyOptimizer {
    optimizer: Arc<dyn DynOptimizer>,
    clip_each: Option<GradientClipping>,
    global_norm: Option<f64>,
    states: HashMap<ParamId, DynState>,
}

impl Optimizer for AnyOptimizer {
    fn for_trial(&self) -> Self {
        Self {
            optimizer: self.optimizer.clone(),
            clip_each: self.clip_each.clone(),
            global_norm: self.global_norm,
            states: HashMap::new(),
        }
    }

    fn step<M: Module>(&mut self, rate: f64, model: M, gradients: GradientsParams) -> M {
        let squares = self.sum_of_squares(&model, &gradients);
        // A device that failed says so where the updated values are read.
        let squares = squares.and_then(|sum| finite::read(sum).ok());
        let mut gradients = self.clipped(&model, gradients, squares);
        self.update(rate, model, &mut gradients)
    }
}

impl AnyOptimizer {
    /// An optimizer without state yet.
    #[must_use]
    pub fn new(settings: OptimizerSettings, clip: Option<Clip>) -> Self {
        let clip_each = match clip {
            Some(Clip::Value { max }) => Some(GradientClippingConfig::Value(max as f32).init()),
            Some(Clip::Norm { max }) => Some(GradientClippingConfig::Norm(max as f32).init()),
            Some(Clip::GlobalNorm { .. }) | None => None,
        };
        let global_norm = match clip {
            Some(Clip::GlobalNorm { max }) => Some(max),
            _ => None,
        };
        Self {
            optimizer: optimizer(settings),
            clip_each,
            global_norm,
            states: HashMap::new(),
        }
    }

    /// Updates the model one layer after the other: the same update, with less memory alive at once where work is
    /// queued. `squares` is their [`sum_of_squares`](Self::sum_of_squares), read; `before_each` is told the layer's place.
    pub(super) fn step_by_layer<L: Module>(
        &mut self,
        rate: f64,
        model: Sequential<L>,
        gradients: GradientsParams,
        squares: Option<f64>,
        mut before_each: impl FnMut(usize),
    ) -> Sequential<L> {
        let mut gradients = self.clipped(&model, gradients, squares);
        let mut updated = Vec::with_capacity(model.len());
        for (place, layer) in model.into_layers().into_iter().enumerate() {
            before_each(place);
            updated.push(self.update(rate, layer, &mut gradients));
        }
        Sequential::new(updated)
    }

    /// The sum of all gradients' squares, where their common norm is bounded and there are any.
    pub(super) fn sum_of_squares<M: Module>(
        &self,
        model: &M,
        gradients: &GradientsParams,
    ) -> Option<Tensor<1>> {
        self.global_norm?;
        sum_of_squares(model, gradients)
    }

    /// The gradients, scaled where their common norm is bounded.
    fn clipped<M: Module>(
        &self,
        model: &M,
        gradients: GradientsParams,
        squares: Option<f64>,
    ) -> GradientsParams {
        match (self.global_norm, squares) {
            (Some(max), Some(squares)) => clip_global_norm(model, gradients, max, squares.sqrt()),
            _ => gradients,
        }
    }

    /// Updates the parameters of `module` that have a gradient, which is taken.
    fn update<M: Module>(&mut self, rate: f64, module: M, gradients: &mut GradientsParams) -> M {
        struct Update<'a> {
            optimizer: &'a mut AnyOptimizer,
            gradients: &'a mut GradientsParams,
            rate: f64,
        }
        impl ModuleMapper for Update<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                match self.gradients.remove::<D>(param.id) {
                    Some(gradient) => self.optimizer.update_one(self.rate, param, gradient),
                    None => param,
                }
            }
        }
        module.map(&mut Update {
            optimizer: self,
            gradients,
            rate,
        })
    }

    /// Updates one parameter, and its state, in place where nobody else holds them.
    fn update_one<const D: usize>(
        &mut self,
        rate: f64,
        param: Param<Tensor<D>>,
        gradient: Tensor<D>,
    ) -> Param<Tensor<D>> {
        let (id, parameter, mapper) = param.consume();
        let leaf = Leaf::of(&parameter);
        let dtype = parameter.dtype();

        let mut gradient = gradient.cast(Dtype::F32.float());
        if let Some(clip) = &self.clip_each {
            gradient = clip.clip_gradient(gradient);
        }
        let parameter = parameter.inner().cast(Dtype::F32.float());
        let state = self.states.remove(&id);
        let (updated, state) = self.optimizer.step_dyn(
            D,
            rate,
            parameter.into_bridge(),
            gradient.into_bridge(),
            state,
        );
        if let Some(state) = state {
            self.states.insert(id, state);
        }
        let updated = Tensor::<D>::from_bridge(updated).cast(dtype);
        Param::from_mapped_value(id, leaf.again(updated), mapper)
    }

    /// The parameter whose state holds a number that is not finite, if one does.
    pub(super) fn not_finite(&self) -> Option<ParamId> {
        let mut states = self.states.iter();
        let found = states.find(|(_, state)| {
            let mut sink = StateSink::default();
            self.optimizer.state_flatten("", state, &mut sink);
            let mut tensors = sink.tensors.iter();
            tensors.any(|(_, data)| data.iter::<f64>().any(|value| !value.is_finite()))
        });
        found.map(|(id, _)| *id)
    }

    /// Writes the state of every parameter.
    pub(super) fn save(&self, to: &mut SnapshotWriter<'_>) -> io::Result<()> {
        to.optimizer(&*self.optimizer, &self.states)
    }

    /// Goes on with the state that an optimizer of the same settings has written.
    pub(super) fn restored(
        self,
        from: &mut Snapshot,
        device: &Device,
    ) -> Result<Self, RunDirError> {
        let states = from.optimizer(&*self.optimizer, device)?;
        Ok(Self { states, ..self })
    }
}

/// burn's optimizer of these settings.
fn optimizer(settings: OptimizerSettings) -> Arc<dyn DynOptimizer> {
    let penalty = |decay: f64| (decay > 0.0).then(|| WeightDecayConfig::new(decay as f32));
    match settings {
        OptimizerSettings::Sgd {
            momentum,
            weight_decay,
        } => {
            // PyTorch's momentum has no dampening by default; burn's has.
            let momentum = (momentum > 0.0).then(|| {
                MomentumConfig::new()
                    .with_momentum(momentum)
                    .with_dampening(0.0)
            });
            let config = SgdConfig::new()
                .with_momentum(momentum)
                .with_weight_decay(penalty(weight_decay));
            Arc::new(config.build())
        }
        OptimizerSettings::Adam {
            betas: [beta_1, beta_2],
            epsilon,
            weight_decay,
        } => {
            let config = AdamConfig::new()
                .with_beta_1(beta_1 as f32)
                .with_beta_2(beta_2 as f32)
                .with_epsilon(epsilon as f32)
                .with_weight_decay(penalty(weight_decay));
            Arc::new(config.build())
        }
        OptimizerSettings::AdamW {
            betas: [beta_1, beta_2],
            epsilon,
            weight_decay,
        } => {
            let config = AdamWConfig::new()
                .with_beta_1(beta_1 as f32)
                .with_beta_2(beta_2 as f32)
                .with_epsilon(epsilon as f32)
                .with_weight_decay(weight_decay as f32);
            Arc::new(config.build())
        }
    }
}

/// The square of the gradients' common L2 norm, if there are gradients.
fn sum_of_squares<M: Module>(model: &M, gradients: &GradientsParams) -> Option<Tensor<1>> {
    struct SquaredNorm<'a> {
        gradients: &'a GradientsParams,
        /// A parameter that is used twice has one gradient.
        seen: HashSet<ParamId>,
        sum: Option<Tensor<1>>,
    }
    impl ModuleVisitor for SquaredNorm<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !self.seen.insert(param.id) {
                return;
            }
            if let Some(gradient) = self.gradients.get::<D>(param.id) {
                let square = gradient.cast(Dtype::F32.float()).square().sum();
                self.sum = Some(match self.sum.take() {
                    None => square,
                    Some(sum) => sum + square,
                });
            }
        }
    }
    let mut squared = SquaredNorm {
        gradients,
        seen: HashSet::new(),
        sum: None,
    };
    model.visit(&mut squared);
    squared.sum
}

/// Scales all gradients by `max / norm` where their common L2 norm exceeds `max` (Pascanu et al. 2013, algorithm 1).
///
/// A gradient that is not finite leaves them as they are, so that the loss shows it.
fn clip_global_norm<M: Module>(
    model: &M,
    gradients: GradientsParams,
    max: f64,
    norm: f64,
) -> GradientsParams {
    /// Moves rather than changes in place, so that a parameter used twice is scaled once.
    struct Scale {
        from: GradientsParams,
        to: GradientsParams,
        factor: f64,
    }
    impl ModuleVisitor for Scale {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.from.remove::<D>(param.id) {
                self.to.register::<D>(param.id, gradient * self.factor);
            }
        }
    }

    if norm <= max || !norm.is_finite() {
        return gradients;
    }
    let mut scale = Scale {
        from: gradients,
        to: GradientsParams::new(),
        factor: max / norm,
    };
    model.visit(&mut scale);
    scale.to
}

#[cfg(test)]
mod tests {
    use burn::{
        nn::{Linear, LinearConfig},
        optim::ModuleOptimizer,
        tensor::Distribution,
    };

    use super::*;

    const RATE: f64 = 0.1;
    const STEPS: usize = 3;

    fn values(layer: &Linear) -> Vec<u32> {
        let weight = layer.weight.val().inner().flatten::<1>(0, 1);
        let bias = layer.bias.as_ref().map(|bias| bias.val().inner());
        let all = Tensor::cat([Some(weight), bias].into_iter().flatten().collect(), 0);
        all.into_data().iter::<f32>().map(f32::to_bits).collect()
    }

    fn gradients(layer: &Linear, input: &Tensor<2>) -> GradientsParams {
        let loss = layer.forward(input.clone()).square().mean();
        GradientsParams::from_grads(loss.backward(), layer)
    }

    #[test]
    fn updates_are_those_of_burns_module_optimizer() {
        let device = Device::flex().autodiff();
        let input = Tensor::random([8, 5], Distribution::Normal(0.0, 1.0), &device);
        let sgd = OptimizerSettings::Sgd {
            momentum: 0.9,
            weight_decay: 0.01,
        };
        let adam = OptimizerSettings::Adam {
            betas: [0.9, 0.99],
            epsilon: 1e-8,
            weight_decay: 0.01,
        };
        let adam_w = OptimizerSettings::AdamW {
            betas: [0.9, 0.99],
            epsilon: 1e-8,
            weight_decay: 0.01,
        };
        let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
        let decay = || Some(WeightDecayConfig::new(0.01));
        let burns: [ModuleOptimizer; 3] = [
            SgdConfig::new()
                .with_momentum(Some(momentum))
                .with_weight_decay(decay())
                .init(),
            AdamConfig::new()
                .with_beta_2(0.99)
                .with_epsilon(1e-8)
                .with_weight_decay(decay())
                .init(),
            AdamWConfig::new()
                .with_beta_2(0.99)
                .with_epsilon(1e-8)
                .with_weight_decay(0.01)
                .init(),
        ];
        for (settings, mut burns) in [sgd, adam, adam_w].into_iter().zip(burns) {
            let mut ours = AnyOptimizer::new(settings, Some(Clip::Norm { max: 0.5 }));
            burns = burns.with_grad_clipping(GradientClipping::Norm(0.5));
            let mut one = LinearConfig::new(5, 7).init(&device);
            let first = values(&one);
            let mut other = one.clone();
            for _ in 0..STEPS {
                let (by_one, by_other) = (gradients(&one, &input), gradients(&other, &input));
                one = ours.step(RATE, one, by_one);
                other = burns.step(RATE, other, by_other);
                assert_eq!(values(&one), values(&other), "{settings:?}");
            }
            assert_ne!(values(&one), first, "{settings:?}");
            assert!(one.weight.is_require_grad());
        }
    }
}
