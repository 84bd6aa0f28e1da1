//! burn's optimizers, chosen at run time.

use std::sync::Arc;

use burn::optim::{
    AdamConfig, AdamWConfig, DynOptimizer, Optimizer, SgdConfig, decay::WeightDecayConfig,
    momentum::MomentumConfig,
};
use rekindle::MasterWeights;

use crate::settings::{OptimizerKind, TrainSettings};

impl TrainSettings {
    /// burn's optimizer of these settings, with [`MasterWeights`] or without.
    pub(super) fn build_optimizer(&self) -> Arc<dyn DynOptimizer> {
        fn of(optimizer: impl Optimizer, keeps_master_weights: bool) -> Arc<dyn DynOptimizer> {
            match keeps_master_weights {
                true => Arc::new(MasterWeights::new(optimizer)),
                false => Arc::new(optimizer),
            }
        }
        let keeps_master_weights = self.keeps_master_weights();
        let decay = self.decay();
        let penalty = (decay > 0.0).then(|| WeightDecayConfig::new(decay as f32));
        let [beta_1, beta_2] = self.betas.map(|beta| beta as f32);
        match self.optimizer {
            OptimizerKind::Sgd => {
                // PyTorch's momentum has no dampening by default; burn's has.
                let momentum = (self.momentum > 0.0).then(|| {
                    MomentumConfig::new()
                        .with_momentum(self.momentum)
                        .with_dampening(0.0)
                });
                let config = SgdConfig::new()
                    .with_momentum(momentum)
                    .with_weight_decay(penalty);
                of(config.build(), keeps_master_weights)
            }
            OptimizerKind::Adam => {
                let config = AdamConfig::new()
                    .with_beta_1(beta_1)
                    .with_beta_2(beta_2)
                    .with_epsilon(self.epsilon as f32)
                    .with_weight_decay(penalty);
                of(config.build(), keeps_master_weights)
            }
            OptimizerKind::AdamW => {
                let config = AdamWConfig::new()
                    .with_beta_1(beta_1)
                    .with_beta_2(beta_2)
                    .with_epsilon(self.epsilon as f32)
                    .with_weight_decay(decay as f32);
                of(config.build(), keeps_master_weights)
            }
        }
    }
}
