//! burn's optimizers, chosen at run time, and clipping of all gradients together.

use std::io;

use burn::{
    grad_clipping::{GradientClipping, GradientClippingConfig},
    module::{AutodiffModule, Module, ModuleVisitor, Param},
    optim::{
        Adam, AdamConfig, AdamW, AdamWConfig, GradientsParams, Optimizer, Sgd, SgdConfig,
        SimpleOptimizer, adaptor::OptimizerAdaptor, decay::WeightDecayConfig,
        momentum::MomentumConfig,
    },
    tensor::{Tensor, backend::AutodiffBackend},
};

use super::{
    f32_update::F32Update,
    run_dir_error::RunDirError,
    settings::{Clip, OptimizerSettings},
    snapshot::{Snapshot, SnapshotWriter},
};
use crate::{dtype::Dtype, sequential::Sequential};

/// Updates a model of type `M` as [`OptimizerSettings`] and [`Clip`] say.
pub struct AnyOptimizer<B: AutodiffBackend, M: AutodiffModule<B>> {
    kind: Kind<B, M>,
    global_norm: Option<f64>,
}

enum Kind<B: AutodiffBackend, M: AutodiffModule<B>> {
    Sgd(OptimizerAdaptor<F32Update<Sgd<B::InnerBackend>>, M, B>),
    Adam(OptimizerAdaptor<F32Update<Adam>, M, B>),
    AdamW(OptimizerAdaptor<F32Update<AdamW>, M, B>),
}

impl<B: AutodiffBackend, L: AutodiffModule<B>> AnyOptimizer<B, Sequential<L>> {
    /// Updates the model one layer after the other: the same update, with less memory alive at once where work is
    /// queued. `before_each` is told the layer's place.
    pub(super) fn step_by_layer(
        &mut self,
        rate: f64,
        model: Sequential<L>,
        gradients: GradientsParams,
        mut before_each: impl FnMut(usize),
    ) -> Sequential<L> {
        let mut gradients = match self.global_norm {
            Some(max) => clip_global_norm(&model, gradients, max),
            None => gradients,
        };
        let mut updated = Vec::with_capacity(model.len());
        for (place, layer) in model.into_layers().into_iter().enumerate() {
            before_each(place);
            let own = taken(&layer, &mut gradients);
            let alone = self.update(rate, Sequential::new(vec![layer]), own);
            updated.extend(alone.into_layers());
        }
        Sequential::new(updated)
    }
}

/// The gradients of a module's parameters, taken out of all.
fn taken<B: AutodiffBackend, M: AutodiffModule<B>>(
    module: &M,
    gradients: &mut GradientsParams,
) -> GradientsParams {
    struct Take<'a> {
        from: &'a mut GradientsParams,
        own: GradientsParams,
    }
    impl<B: AutodiffBackend> ModuleVisitor<B> for Take<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if let Some(gradient) = self.from.remove::<B::InnerBackend, D>(param.id) {
                self.own.register::<B::InnerBackend, D>(param.id, gradient);
            }
        }
    }
    let mut take = Take {
        from: gradients,
        own: GradientsParams::new(),
    };
    Module::<B>::visit(module, &mut take);
    take.own
}

impl<B: AutodiffBackend, M: AutodiffModule<B>> AnyOptimizer<B, M> {
    /// An optimizer without state yet.
    #[must_use]
    pub fn new(settings: OptimizerSettings, clip: Option<Clip>) -> Self {
        let clip_each = match clip {
            Some(Clip::Value { max }) => Some(GradientClippingConfig::Value(max as f32).init()),
            Some(Clip::Norm { max }) => Some(GradientClippingConfig::Norm(max as f32).init()),
            Some(Clip::GlobalNorm { .. }) | None => None,
        };
        let penalty = |decay: f64| (decay > 0.0).then(|| WeightDecayConfig::new(decay as f32));
        let kind = match settings {
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
                Kind::Sgd(adapted(config.build(), clip_each))
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
                Kind::Adam(adapted(config.build(), clip_each))
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
                Kind::AdamW(adapted(config.build(), clip_each))
            }
        };
        let global_norm = match clip {
            Some(Clip::GlobalNorm { max }) => Some(max),
            _ => None,
        };
        Self { kind, global_norm }
    }

    /// Updates the model.
    #[must_use]
    pub fn step(&mut self, rate: f64, model: M, gradients: GradientsParams) -> M {
        let gradients = match self.global_norm {
            Some(max) => clip_global_norm(&model, gradients, max),
            None => gradients,
        };
        self.update(rate, model, gradients)
    }

    fn update(&mut self, rate: f64, model: M, gradients: GradientsParams) -> M {
        match &mut self.kind {
            Kind::Sgd(optimizer) => optimizer.step(rate, model, gradients),
            Kind::Adam(optimizer) => optimizer.step(rate, model, gradients),
            Kind::AdamW(optimizer) => optimizer.step(rate, model, gradients),
        }
    }

    /// Writes the state of every parameter.
    pub(super) fn save(&self, to: &mut SnapshotWriter<'_>) -> io::Result<()> {
        match &self.kind {
            Kind::Sgd(optimizer) => to.optimizer::<B, _>(optimizer.to_record()),
            Kind::Adam(optimizer) => to.optimizer::<B, _>(optimizer.to_record()),
            Kind::AdamW(optimizer) => to.optimizer::<B, _>(optimizer.to_record()),
        }
    }

    /// Goes on with the state that an optimizer of the same settings has written.
    pub(super) fn restored(
        self,
        from: &mut Snapshot,
        device: &B::Device,
    ) -> Result<Self, RunDirError> {
        let kind = match self.kind {
            Kind::Sgd(optimizer) => {
                Kind::Sgd(optimizer.load_record(from.optimizer::<B, _, _>(device)?))
            }
            Kind::Adam(optimizer) => {
                Kind::Adam(optimizer.load_record(from.optimizer::<B, _, _>(device)?))
            }
            Kind::AdamW(optimizer) => {
                Kind::AdamW(optimizer.load_record(from.optimizer::<B, _, _>(device)?))
            }
        };
        Ok(Self { kind, ..self })
    }
}

fn adapted<B: AutodiffBackend, M: AutodiffModule<B>, O: SimpleOptimizer<B::InnerBackend>>(
    optimizer: O,
    clip: Option<GradientClipping>,
) -> OptimizerAdaptor<F32Update<O>, M, B> {
    OptimizerAdaptor::from(F32Update { optimizer, clip })
}

/// Scales all gradients by `max / norm` where their common L2 norm exceeds `max` (Pascanu et al. 2013, algorithm 1).
///
/// A gradient that is not finite leaves them as they are, so that the loss shows it.
fn clip_global_norm<B: AutodiffBackend, M: AutodiffModule<B>>(
    model: &M,
    gradients: GradientsParams,
    max: f64,
) -> GradientsParams {
    struct SquaredNorm<'a, B: AutodiffBackend> {
        gradients: &'a GradientsParams,
        sum: Option<Tensor<B::InnerBackend, 1>>,
    }
    impl<B: AutodiffBackend> ModuleVisitor<B> for SquaredNorm<'_, B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if let Some(gradient) = self.gradients.get::<B::InnerBackend, D>(param.id) {
                let square = gradient.cast(Dtype::F32.float()).square().sum();
                self.sum = Some(match self.sum.take() {
                    None => square,
                    Some(sum) => sum + square,
                });
            }
        }
    }
    /// Moves rather than changes in place, so that a parameter used twice is scaled once.
    struct Scale {
        from: GradientsParams,
        to: GradientsParams,
        factor: f64,
    }
    impl<B: AutodiffBackend> ModuleVisitor<B> for Scale {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if let Some(gradient) = self.from.remove::<B::InnerBackend, D>(param.id) {
                self.to
                    .register::<B::InnerBackend, D>(param.id, gradient * self.factor);
            }
        }
    }

    let mut squared = SquaredNorm {
        gradients: &gradients,
        sum: None,
    };
    model.visit(&mut squared);
    let Some(sum) = squared.sum else {
        return gradients;
    };
    let norm = sum.into_data().iter::<f64>().next().map_or(0.0, f64::sqrt);
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
