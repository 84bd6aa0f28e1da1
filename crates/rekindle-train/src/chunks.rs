//! Checks whether a training can run its loss in chunks.

use super::{
    session::RunError,
    settings::{LossChunks, TrainSettings},
};
use crate::{
    data::TargetKind,
    model::spec::{LayerSpec, ModelSpec},
};

/// Checks that a training can run its loss as configured.
///
/// # Errors
///
/// The reason why it cannot.
pub fn check_loss_chunks(
    settings: &TrainSettings,
    model: &ModelSpec,
    target: TargetKind,
) -> Result<(), RunError> {
    if settings.loss_chunks == LossChunks::Whole {
        return Ok(());
    }
    let why = match model.layers.last() {
        _ if matches!(target, TargetKind::Values(_)) => {
            "`loss_chunks` is for targets that are classes: leave it out".into()
        }
        Some(LayerSpec::Linear { .. } | LayerSpec::Unembedding) => return Ok(()),
        last => format!(
            "`loss_chunks` needs a `linear` or an `unembedding` as the last layer, not `{}`",
            last.map_or("nothing", LayerSpec::kind)
        ),
    };
    Err(RunError::Refused(why))
}
