//! Which trainings can run their loss in chunks, and how large the chunks are.

use thiserror::Error;

use super::settings::{LossChunks, LossKind, TrainSettings};
use crate::model::{
    shape::LayerShape,
    spec::{LayerSpec, ModelSpec, SampleShape},
};
use rekindle::ChunkedCrossEntropy;

/// Why a loss cannot run in chunks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LossChunksRefused {
    /// The loss needs no projection onto classes.
    #[error("`loss_chunks` is for `cross_entropy`: leave it out")]
    Loss,
    /// What comes last is no projection.
    #[error(
        "`loss_chunks` runs the last layer inside the loss, which must be a `linear` or an `unembedding`, not `{last}`"
    )]
    LastLayer {
        /// The last layer's name in a config.
        last: &'static str,
    },
}

/// Checks that a training can run its loss as its settings say.
///
/// # Errors
///
/// Why it cannot.
pub fn check_loss_chunks(
    settings: &TrainSettings,
    model: &ModelSpec,
) -> Result<(), LossChunksRefused> {
    if settings.loss_chunks == LossChunks::Whole {
        return Ok(());
    }
    if settings.loss != LossKind::CrossEntropy {
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

/// Sizes of a last layer that runs in chunks.
pub(crate) struct ChunkedSizes {
    /// Rows of a batch.
    pub(crate) rows: u64,
    /// Values of a row.
    pub(crate) width: u64,
    /// Logits of a row.
    pub(crate) classes: u64,
    /// Rows of the largest chunk.
    pub(crate) at_once: u64,
}

impl ChunkedSizes {
    /// Those of a layer and a batch of so many samples.
    pub(crate) fn of(loss: ChunkedCrossEntropy, layer: &LayerShape, batch: u64) -> Self {
        let last = |sample: &SampleShape| sample.dims.last().copied().unwrap_or(1).max(1);
        let (width, classes) = (last(&layer.input), last(&layer.output) as u64);
        let rows = (layer.input.elements() / width as u64).saturating_mul(batch);
        let chunk = loss.chunk_tokens(usize::try_from(rows).unwrap_or(usize::MAX), width);
        Self {
            rows,
            width: width as u64,
            classes,
            at_once: rows.min(chunk as u64),
        }
    }
}
