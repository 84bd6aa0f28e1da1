//! Checks whether a training can run its loss in chunks.

use thiserror::Error;

use super::settings::{LossChunks, TrainSettings};
use crate::{
    data::TargetKind,
    model::spec::{LayerSpec, ModelSpec},
};

/// Why a loss cannot run in chunks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LossChunksRefused {
    /// The loss needs no projection onto classes.
    #[error("`loss_chunks` is for targets that are classes: leave it out")]
    Loss,
    /// The last layer is not a projection.
    #[error(
        "`loss_chunks` runs the last layer inside the loss, which must be a `linear` or an `unembedding`, not `{last}`"
    )]
    LastLayer {
        /// The last layer's name in a config.
        last: &'static str,
    },
}

/// Checks that a training can run its loss as configured.
///
/// # Errors
///
/// The reason why it cannot.
pub fn check_loss_chunks(
    settings: &TrainSettings,
    model: &ModelSpec,
    target: TargetKind,
) -> Result<(), LossChunksRefused> {
    if settings.loss_chunks == LossChunks::Whole {
        return Ok(());
    }
    if matches!(target, TargetKind::Values(_)) {
        return Err(LossChunksRefused::Loss);
    }
    match model.layers.last() {
        Some(LayerSpec::Linear { .. } | LayerSpec::Unembedding { .. }) => Ok(()),
        last => {
            let last = last.map_or("nothing", LayerSpec::kind);
            Err(LossChunksRefused::LastLayer { last })
        }
    }
}
