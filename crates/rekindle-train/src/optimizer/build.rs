//! burn's optimizers, chosen at run time.

use std::sync::Arc;

use burn::optim::{
    AdamConfig, AdamWConfig, DynOptimizer, Optimizer, SgdConfig, decay::WeightDecayConfig,
    momentum::MomentumConfig,
};
use rekindle::MasterWeights;

use crate::settings::OptimizerSettings;

impl OptimizerSettings {
    /// burn's optimizer of these settings, with [`MasterWeights`] or without.
    pub(super) fn build(self, keeps_master_weights: bool) -> Arc<dyn DynOptimizer> {
        fn of(optimizer: impl Optimizer, keeps_master_weights: bool) -> Arc<dyn DynOptimizer> {
            match keeps_master_weights {
                true => Arc::new(MasterWeights::new(optimizer)),
                false => Arc::new(optimizer),
            }
        }
        let penalty = |decay: f64| (decay > 0.0).then(|| WeightDecayConfig::new(decay as f32));
        match self {
            Self::Sgd {
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
            Self::Adam {
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
            Self::AdamW {
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
}
