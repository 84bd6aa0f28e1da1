//! burn's optimizers, chosen at run time, and clipping of all gradients together.
//!
//! Parameters are updated one after the other, each in `f32` whatever its type is: gradient, clipping, state and the
//! updated value are `f32`, and only the value that stays is rounded; [`MasterWeights`] keep it in `f32` as well.
//! Where parameters are `f32` the update is that of burn's [`ModuleOptimizer`](burn::optim::ModuleOptimizer), bit for
//! bit.
//!
//! A gradient is first divided by the [scale of the loss](super::loss_scale), then clipped.
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
        AdamConfig, AdamWConfig, DynOptimizer, DynState, GradientsParams,
        Optimizer as BurnOptimizer, SgdConfig, StateSink, decay::WeightDecayConfig,
        momentum::MomentumConfig,
    },
    tensor::{Device, Tensor},
};

use super::{
    finite,
    loss_scale::LossScaler,
    run_dir_error::RunDirError,
    settings::{Clip, OptimizerSettings, TrainSettings},
    sharded_state::Part,
    snapshot::{Snapshot, SnapshotWriter},
};
use rekindle::{
    MasterWeights,
    dtype::Dtype,
    record::{Leaf, Optimizer},
    reduce::{ReduceError, Shards},
    sequential::Sequential,
};

/// Updates models as [`TrainSettings`] say.
pub struct AnyOptimizer {
    optimizer: Arc<dyn DynOptimizer>,
    /// Whether it keeps parameters in `f32` itself.
    keeps_master_weights: bool,
    clip_each: Option<GradientClipping>,
    global_norm: Option<f64>,
    scaler: LossScaler,
    /// Of those that ranks share out, if they do, this rank's.
    states: HashMap<ParamId, DynState>,
    shards: Option<Shards>,
}

impl Optimizer for AnyOptimizer {
    fn for_trial(&self) -> Self {
        Self {
            optimizer: self.optimizer.clone(),
            clip_each: self.clip_each.clone(),
            scaler: self.scaler.clone(),
            states: HashMap::new(),
            shards: self.shards.clone(),
            ..*self
        }
    }

    fn step<M: Module>(&mut self, rate: f64, model: M, mut gradients: GradientsParams) -> M {
        let squares = self.sum_of_squares(&model, &gradients);
        // A device that failed says so where the updated values are read.
        let squares = squares.and_then(|sum| finite::read(sum).ok());
        let factor = self.factor(squares);
        self.update(rate, model, &mut gradients, factor)
    }

    fn shards(&self) -> Option<&Shards> {
        self.shards.as_ref()
    }
}

impl AnyOptimizer {
    /// An optimizer without state yet.
    #[must_use]
    pub fn new(settings: &TrainSettings) -> Self {
        let clip_each = match settings.clip {
            Some(Clip::Value { max }) => Some(GradientClippingConfig::Value(max as f32).init()),
            Some(Clip::Norm { max }) => Some(GradientClippingConfig::Norm(max as f32).init()),
            Some(Clip::GlobalNorm { .. }) | None => None,
        };
        let global_norm = match settings.clip {
            Some(Clip::GlobalNorm { max }) => Some(max),
            _ => None,
        };
        let keeps_master_weights = settings.keeps_master_weights();
        Self {
            optimizer: optimizer(settings.optimizer, keeps_master_weights),
            keeps_master_weights,
            clip_each,
            global_norm,
            scaler: LossScaler::new(settings),
            states: HashMap::new(),
            shards: None,
        }
    }

    /// Keeps this rank's part of the state alone, where ranks share it out.
    #[must_use]
    pub(super) fn sharded(self, shards: Option<Shards>) -> Self {
        Self { shards, ..self }
    }

    /// The scale of the loss.
    pub(super) fn scaler(&self) -> &LossScaler {
        &self.scaler
    }

    /// The scale of the loss, to be told what became of a step.
    pub(super) fn scaler_mut(&mut self) -> &mut LossScaler {
        &mut self.scaler
    }

    /// Updates the model one layer after the other: the same update, with less memory alive at once where work is
    /// queued. `squares` is their [`sum_of_squares`](Self::sum_of_squares), read; `before_each` is told the layer's place.
    pub(super) fn step_by_layer<L: Module>(
        &mut self,
        rate: f64,
        model: Sequential<L>,
        mut gradients: GradientsParams,
        squares: Option<f64>,
        mut before_each: impl FnMut(usize),
    ) -> Sequential<L> {
        let factor = self.factor(squares);
        let mut updated = Vec::with_capacity(model.len());
        for (place, layer) in model.into_layers().into_iter().enumerate() {
            before_each(place);
            updated.push(self.update(rate, layer, &mut gradients, factor));
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

    /// What each gradient is multiplied by, where the loss is scaled or the common norm is bounded: `1 / scale`, and
    /// `max / norm` where the norm, without the scale, exceeds `max` (Pascanu et al. 2013, algorithm 1). A norm that is not
    /// finite bounds nothing, so that the loss shows it.
    fn factor(&self, squares: Option<f64>) -> Option<f64> {
        let scale = self.scaler.scale();
        let unscaled = 1.0 / scale.unwrap_or(1.0);
        let Some((max, squares)) = self.global_norm.zip(squares) else {
            return scale.map(|_| unscaled);
        };
        let norm = squares.sqrt() * unscaled;
        Some(match norm > max && norm.is_finite() {
            true => unscaled * (max / norm),
            false => unscaled,
        })
    }

    /// Updates the parameters of `module` that have a gradient, which is taken: of those that ranks share out, this rank's.
    fn update<M: Module>(
        &mut self,
        rate: f64,
        module: M,
        gradients: &mut GradientsParams,
        factor: Option<f64>,
    ) -> M {
        struct Update<'a> {
            optimizer: &'a mut AnyOptimizer,
            gradients: &'a mut GradientsParams,
            rate: f64,
            factor: Option<f64>,
        }
        impl ModuleMapper for Update<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let shards = self.optimizer.shards.as_ref();
                let own = shards.is_none_or(|shards| shards.keeps(param.id));
                match self.gradients.remove::<D>(param.id) {
                    Some(gradient) if own => {
                        let Self { rate, factor, .. } = *self;
                        self.optimizer.update_one(rate, param, gradient, factor)
                    }
                    _ => param,
                }
            }
        }
        module.map(&mut Update {
            optimizer: self,
            gradients,
            rate,
            factor,
        })
    }

    /// Updates one parameter, and its state, in place where nobody else holds them.
    fn update_one<const D: usize>(
        &mut self,
        rate: f64,
        param: Param<Tensor<D>>,
        gradient: Tensor<D>,
        factor: Option<f64>,
    ) -> Param<Tensor<D>> {
        let (id, parameter, mapper) = param.consume();
        let leaf = Leaf::of(&parameter);
        let dtype = parameter.dtype();

        let mut gradient = gradient.cast(Dtype::F32.float());
        if let Some(factor) = factor {
            gradient = gradient * factor;
        }
        if let Some(clip) = &self.clip_each {
            gradient = clip.clip_gradient(gradient);
        }
        let mut parameter = parameter.inner();
        if !self.keeps_master_weights {
            parameter = parameter.cast(Dtype::F32.float());
        }
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

    /// Writes the state of every parameter. Where ranks share them out, the others [answer](Self::end_save) meanwhile.
    pub(super) fn save(&self, to: &mut SnapshotWriter<'_>) -> io::Result<()> {
        match self.part() {
            Some(part) => part.write(to)?,
            None => to.optimizer(&*self.optimizer, &self.states)?,
        }
        self.scaler.save(to)
    }

    /// Ends what rank 0 has saved, or tried to; the other ranks give it their parts until then.
    pub(super) fn end_save(&self) -> Result<(), ReduceError> {
        match self.part() {
            Some(part) if part.shards.reducer().rank() == 0 => part.done(),
            Some(part) => part.answer(),
            None => Ok(()),
        }
    }

    /// This rank's part of the state, where ranks share it out.
    fn part(&self) -> Option<Part<'_>> {
        Some(Part {
            shards: self.shards.as_ref()?,
            optimizer: &*self.optimizer,
            states: &self.states,
        })
    }

    /// Goes on with the state that an optimizer of the same settings has written, whole or not.
    pub(super) fn restored(
        self,
        from: &mut Snapshot,
        device: &Device,
    ) -> Result<Self, RunDirError> {
        let shards = self.shards.as_ref();
        let wanted = |id| shards.is_none_or(|shards| shards.keeps(id));
        let states = from.optimizer(&*self.optimizer, wanted, device)?;
        let scaler = self.scaler.restored(from)?;
        Ok(Self {
            states,
            scaler,
            ..self
        })
    }
}

/// burn's optimizer of these settings, with [`MasterWeights`] or without.
fn optimizer(settings: OptimizerSettings, keeps_master_weights: bool) -> Arc<dyn DynOptimizer> {
    fn of(optimizer: impl BurnOptimizer, keeps_master_weights: bool) -> Arc<dyn DynOptimizer> {
        match keeps_master_weights {
            true => Arc::new(MasterWeights::new(optimizer)),
            false => Arc::new(optimizer),
        }
    }
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
            of(config.build(), keeps_master_weights)
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
            of(config.build(), keeps_master_weights)
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
            of(config.build(), keeps_master_weights)
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

#[cfg(test)]
mod tests {
    use burn::{
        nn::{Linear, LinearConfig},
        optim::ModuleOptimizer,
        tensor::Distribution,
    };

    use super::*;
    use crate::loss_scale::LossScale;

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
            let mut ours = AnyOptimizer::new(&TrainSettings {
                optimizer: settings,
                clip: Some(Clip::Norm { max: 0.5 }),
                ..TrainSettings::default()
            });
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

    fn sgd(dtype: Dtype) -> TrainSettings {
        TrainSettings {
            dtype,
            optimizer: OptimizerSettings::Sgd {
                momentum: 0.0,
                weight_decay: 0.0,
            },
            ..TrainSettings::default()
        }
    }

    /// Steps of `weight`, a single number in the settings' type, along the gradient of `loss`, scaled.
    fn steps(
        settings: &TrainSettings,
        (rate, count): (f64, usize),
        weight: f32,
        loss: impl Fn(Tensor<1>) -> Tensor<1>,
    ) -> f32 {
        let device = Device::flex().autodiff();
        let mut optimizer = AnyOptimizer::new(settings);
        let tensor = Tensor::from_data([weight], (&device, settings.dtype.float().into()));
        let mut param = Param::from_tensor(tensor);
        for _ in 0..count {
            let mut loss = loss(param.val()).cast(Dtype::F32.float());
            if let Some(scale) = optimizer.scaler().tensor(&device) {
                loss = loss * scale;
            }
            let gradients = GradientsParams::from_grads(loss.backward(), &param);
            param = optimizer.step(rate, param, gradients);
        }
        param.val().into_data().iter::<f32>().next().expect("one")
    }

    /// The loss is the weight, so that its gradient is 1: `n` updates of 2^-13 come to `1 - n 2^-13`, of which none is half
    /// as large as the distance of numbers below 1, 2^-8 in `bf16` and 2^-11 in `f16`.
    #[test]
    fn updates_below_the_last_place_add_up_in_master_weights() {
        for dtype in [Dtype::Bf16, Dtype::F16] {
            for (master_weights, expected) in [(true, 1.0 - 512.0 / 8192.0), (false, 1.0)] {
                let settings = TrainSettings {
                    master_weights,
                    loss_scale: LossScale::None,
                    ..sgd(dtype)
                };
                let weight = steps(&settings, (1.0 / 8192.0, 512), 1.0, |weight| weight);
                assert_eq!(weight, expected, "{dtype}, {master_weights}");
            }
        }
    }

    /// Of `w x` with `x` = 2^-13, weighted by 2^-13, the gradient by `w` is 2^-26: `f16` has no number between 0 and 2^-24.
    #[test]
    fn a_gradient_too_small_for_f16_takes_a_scaled_loss() {
        let small = 1.0 / 8192.0;
        let of = |loss_scale| {
            let settings = TrainSettings {
                loss_scale,
                ..sgd(Dtype::F16)
            };
            steps(&settings, (1024.0, 1), 0.0, |weight| {
                (weight * small).cast(Dtype::F32.float()) * small
            })
        };
        let exact = -1024.0 * 2.0_f32.powi(-26);
        assert_eq!(of(LossScale::None), 0.0);
        assert_eq!(of(LossScale::Auto), exact);
        assert_eq!(of(LossScale::Fixed(1024.0)), exact);
    }

    /// Gradients 3 and 4 have the norm 5, however the loss is scaled.
    #[test]
    fn gradients_are_clipped_without_the_scale() {
        let device = Device::flex().autodiff();
        for clip in [Clip::GlobalNorm { max: 1.0 }, Clip::Norm { max: 1.0 }] {
            let settings = TrainSettings {
                clip: Some(clip),
                loss_scale: LossScale::Fixed(1024.0),
                ..sgd(Dtype::F32)
            };
            let param = Param::from_tensor(Tensor::<1>::zeros([2], &device));
            let mut gradients = GradientsParams::new();
            let scaled = [3.0 * 1024.0, 4.0 * 1024.0];
            gradients.register(param.id, Tensor::<1>::from_data(scaled, &Device::flex()));
            let param = AnyOptimizer::new(&settings).step(1.0, param, gradients);
            let found: Vec<f32> = param.val().into_data().iter::<f32>().collect();
            for (found, exact) in found.iter().zip([-0.6, -0.8]) {
                assert!((found - exact).abs() < 1e-6, "{clip:?}: {found}");
            }
        }
    }
}
