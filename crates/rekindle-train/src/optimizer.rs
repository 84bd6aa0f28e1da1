//! Updates by burn's optimizers, and clipping by the global norm.
//!
//! Parameters are updated one after another, each in `f32` for any type: gradient, clipping, state and the updated
//! value are `f32`, and only the stored value is rounded; [`MasterWeights`] keep it in `f32`
//! as well. For `f32` parameters, the update is that of burn's [`ModuleOptimizer`](burn::optim::ModuleOptimizer), bit
//! for bit.
//!
//! A gradient is first divided by the [scale of the loss](super::settings::LossScale), then clipped.
//!
//! The state of some parameters may wait in host memory between their updates, where a plan asks for it: it comes to the device
//! directly before the update and goes back after it, with the same bits.
//!
//! Memory: for smaller types, copies of one parameter and of its gradient while it is updated.

mod saved;

use std::{
    collections::{HashMap, HashSet},
    mem::take,
    sync::Arc,
};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::{
        AdamConfig, AdamWConfig, DynOptimizer, DynState, GradientsParams, SgdConfig, StateSink,
        StateSource, decay::WeightDecayConfig, momentum::MomentumConfig,
    },
    tensor::{Device, Tensor, TensorData},
};

pub(crate) use saved::Forms;

use super::{
    finite,
    loss_scale::LossScaler,
    settings::{OptimizerKind, TrainSettings},
    snapshot::STATE_PREFIX,
};
use rekindle::{
    MasterWeights,
    dtype::Dtype,
    record::{
        Optimizer,
        driver::{Leaf, Shards, catch},
    },
    sequential::Sequential,
};

/// Updates models according to [`TrainSettings`].
pub struct AnyOptimizer {
    optimizer: Arc<dyn DynOptimizer>,
    /// Whether it keeps parameters in `f32` itself.
    keeps_master_weights: bool,
    /// Bound on the norm of all gradients together.
    clip_norm: Option<f64>,
    /// The scale of the loss, which is informed of each step's result.
    pub(super) scaler: LossScaler,
    /// The state of each parameter; only of this rank's, if ranks divide the state.
    states: HashMap<ParamId, Kept>,
    /// The parameters whose state is in host memory between their updates.
    on_host: HashSet<ParamId>,
    /// The number of tensors in a state.
    tensors: usize,
    shards: Option<Shards>,
}

impl Optimizer for AnyOptimizer {
    fn for_trial(&self) -> Self {
        Self {
            optimizer: self.optimizer.clone(),
            scaler: self.scaler.clone(),
            states: HashMap::new(),
            on_host: HashSet::new(),
            shards: self.shards.clone(),
            ..*self
        }
    }

    fn step<M: Module>(&mut self, rate: f64, model: M, mut gradients: GradientsParams) -> M {
        let squares = self.sum_of_squares(&model, &gradients);
        // A device's failure is reported when the updated values are read.
        let squares = squares.and_then(|sum| finite::read(sum).ok());
        let factor = self.factor(squares);
        self.update(rate, model, &mut gradients, factor, &|| ())
    }

    fn movable_tensors(&self) -> usize {
        self.tensors
    }

    fn shards(&self) -> Option<&Shards> {
        self.shards.as_ref()
    }
}

impl AnyOptimizer {
    /// An optimizer without state yet.
    #[must_use]
    pub fn new(settings: &TrainSettings) -> Self {
        Self {
            optimizer: built(settings),
            keeps_master_weights: settings.keeps_master_weights(),
            clip_norm: settings.clip_norm,
            scaler: LossScaler::new(settings.loss_scale()),
            states: HashMap::new(),
            on_host: HashSet::new(),
            tensors: (settings.state_bytes(1).0 / Dtype::F32.bytes()) as usize,
            shards: None,
        }
    }

    /// Keeps only this rank's part of the state, if ranks divide it.
    #[must_use]
    pub(super) fn sharded(self, shards: Option<Shards>) -> Self {
        Self { shards, ..self }
    }

    /// Updates the model one layer after another: the same update, with less memory in use at one time if work is
    /// queued. `squares` is the value of [`sum_of_squares`](Self::sum_of_squares); `before_each` runs before each
    /// layer, and before each state that comes from the host.
    pub(super) fn step_by_layer<L: Module>(
        &mut self,
        rate: f64,
        model: Sequential<L>,
        mut gradients: GradientsParams,
        squares: Option<f64>,
        before_each: impl Fn(),
    ) -> Sequential<L> {
        let factor = self.factor(squares);
        let mut updated = Vec::with_capacity(model.layers.len());
        for layer in model.layers {
            before_each();
            updated.push(self.update(rate, layer, &mut gradients, factor, &before_each));
        }
        Sequential::new(updated)
    }

    /// The sum of the squares of all gradients, if their global norm is bounded and there are any.
    pub(super) fn sum_of_squares<M: Module>(
        &self,
        model: &M,
        gradients: &GradientsParams,
    ) -> Option<Tensor<1>> {
        let mut squared = SquaredNorm {
            gradients,
            seen: HashSet::new(),
            sum: None,
        };
        if self.clip_norm.is_some() {
            model.visit(&mut squared);
        }
        squared.sum
    }

    /// The factor for each gradient, if the loss is scaled or the global norm is bounded: `1 / scale`, and `max / norm`
    /// if the norm, without the scale, exceeds `max` (Pascanu et al. 2013, algorithm 1). A norm that is not finite is
    /// not clipped, so that the loss shows it.
    fn factor(&self, squares: Option<f64>) -> Option<f64> {
        let scale = self.scaler.scale();
        let unscaled = 1.0 / scale.unwrap_or(1.0);
        let (Some(max), Some(squares)) = (self.clip_norm, squares) else {
            return scale.map(|_| unscaled);
        };
        let norm = squares.sqrt() * unscaled;
        Some(match norm > max && norm.is_finite() {
            true => unscaled * (max / norm),
            false => unscaled,
        })
    }

    /// Updates the parameters of `module` that have a gradient, and removes the gradient; only this rank's parameters,
    /// if ranks divide them.
    fn update<M: Module>(
        &mut self,
        rate: f64,
        module: M,
        gradients: &mut GradientsParams,
        factor: Option<f64>,
        before_moves: &dyn Fn(),
    ) -> M {
        struct Update<'a> {
            optimizer: &'a mut AnyOptimizer,
            gradients: &'a mut GradientsParams,
            rate: f64,
            factor: Option<f64>,
            before_moves: &'a dyn Fn(),
        }
        impl ModuleMapper for Update<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                match self.gradients.remove::<D>(param.id) {
                    Some(gradient) if self.optimizer.updates(param.id) => {
                        let Self { rate, factor, .. } = *self;
                        if self.optimizer.on_host.contains(&param.id) {
                            (self.before_moves)();
                        }
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
            before_moves,
        })
    }

    /// Whether this rank updates the parameter.
    fn updates(&self, id: ParamId) -> bool {
        let shards = self.shards.as_ref();
        shards.is_none_or(|shards| shards.keeps(id))
    }

    /// Updates one parameter and its state, in place if nothing else holds them.
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
        let mut parameter = parameter.inner();
        if !self.keeps_master_weights {
            parameter = parameter.cast(Dtype::F32.float());
        }
        let device = parameter.device();
        let state = self.states.remove(&id);
        let state = state.and_then(|state| state.on_device(&*self.optimizer, D, &device));
        let (parameter, gradient) = (parameter.into_bridge(), gradient.into_bridge());
        let optimizer = &self.optimizer;
        let (updated, state) = optimizer.step_dyn(D, rate, parameter, gradient, state);
        let state = state.map(|state| (id, self.kept(id, state)));
        self.states.extend(state);
        let updated = Tensor::<D>::from_bridge(updated).cast(dtype);
        Param::from_mapped_value(id, leaf.again(updated), mapper)
    }

    /// Keeps the state of these parameters in host memory between their updates, from now on, and that of the others on the
    /// device, from their next update on.
    pub(super) fn keep_on_host(&mut self, parameters: HashSet<ParamId>) {
        if self.on_host == parameters {
            return;
        }
        self.on_host = parameters;
        for (id, kept) in take(&mut self.states) {
            let kept = match kept {
                Kept::OnDevice(state) => self.kept(id, state),
                on_host => on_host,
            };
            self.states.insert(id, kept);
        }
    }

    /// A state where it is kept between updates. One that the device does not give stays there: a device that has failed fails
    /// the next step.
    fn kept(&self, id: ParamId, state: DynState) -> Kept {
        if !self.on_host.contains(&id) {
            return Kept::OnDevice(state);
        }
        let read = catch(|| {
            let mut sink = StateSink::default();
            self.optimizer
                .state_flatten(STATE_PREFIX, &state, &mut sink);
            // What is read from a device is in pinned memory.
            for (_, data) in &mut sink.tensors {
                let bytes = data.as_bytes().to_vec();
                *data = TensorData::from_bytes_vec(bytes, data.shape().clone(), data.dtype());
            }
            sink
        });
        read.map_or(Kept::OnDevice(state), Kept::OnHost)
    }

    /// A parameter whose state contains a number that is not finite, if any.
    pub(super) fn not_finite(&self) -> Option<ParamId> {
        let mut states = self.states.iter();
        let found = states.find(|(_, state)| {
            state.read(&*self.optimizer, |sink| {
                let mut tensors = sink.tensors.iter();
                tensors.any(|(_, data)| data.iter::<f64>().any(|value| !value.is_finite()))
            })
        });
        found.map(|(id, _)| *id)
    }
}

/// Where a parameter's state is between updates.
enum Kept {
    OnDevice(DynState),
    /// As snapshots have it.
    OnHost(StateSink),
}

impl Kept {
    /// The state on the device, for an update.
    fn on_device(self, by: &dyn DynOptimizer, rank: usize, device: &Device) -> Option<DynState> {
        let sink = match self {
            Self::OnDevice(state) => return Some(state),
            Self::OnHost(sink) => sink,
        };
        let mut source = StateSource::new(sink.scalars.into_iter().collect());
        for (name, data) in sink.tensors {
            source.insert_tensor(name, data);
        }
        by.state_unflatten(rank, STATE_PREFIX, &mut source, device)
    }

    /// Reads it as plain values.
    fn read<T>(&self, by: &dyn DynOptimizer, read: impl FnOnce(&StateSink) -> T) -> T {
        match self {
            Self::OnDevice(state) => {
                let mut sink = StateSink::default();
                by.state_flatten(STATE_PREFIX, state, &mut sink);
                read(&sink)
            }
            Self::OnHost(sink) => read(sink),
        }
    }
}

/// burn's optimizer of these settings, with [`MasterWeights`] or without.
fn built(settings: &TrainSettings) -> Arc<dyn DynOptimizer> {
    fn of(
        optimizer: impl burn::optim::Optimizer,
        settings: &TrainSettings,
    ) -> Arc<dyn DynOptimizer> {
        match settings.keeps_master_weights() {
            true => Arc::new(MasterWeights::new(optimizer)),
            false => Arc::new(optimizer),
        }
    }
    let decay = settings.decay();
    let penalty = (decay > 0.0).then(|| WeightDecayConfig::new(decay as f32));
    let [beta_1, beta_2] = settings.betas.map(|beta| beta as f32);
    match settings.optimizer {
        OptimizerKind::Sgd => {
            // PyTorch's momentum has no dampening by default; burn's has.
            let momentum = (settings.momentum > 0.0).then(|| {
                MomentumConfig::new()
                    .with_momentum(settings.momentum)
                    .with_dampening(0.0)
            });
            let config = SgdConfig::new()
                .with_momentum(momentum)
                .with_weight_decay(penalty);
            of(config.build(), settings)
        }
        OptimizerKind::Adam => {
            let config = AdamConfig::new()
                .with_beta_1(beta_1)
                .with_beta_2(beta_2)
                .with_epsilon(settings.epsilon as f32)
                .with_weight_decay(penalty);
            of(config.build(), settings)
        }
        OptimizerKind::AdamW => {
            let config = AdamWConfig::new()
                .with_beta_1(beta_1)
                .with_beta_2(beta_2)
                .with_epsilon(settings.epsilon as f32)
                .with_weight_decay(decay as f32);
            of(config.build(), settings)
        }
    }
}

/// The square of the gradients' global L2 norm.
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

#[cfg(test)]
mod tests;
