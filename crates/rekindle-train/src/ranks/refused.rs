//! Jobs that several ranks cannot share.

use rekindle::reduce;
use thiserror::Error;

use crate::settings::TrainSettings;

/// The error of a job that several ranks cannot train.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RanksRefused {
    /// Some rank would have no sample.
    #[error(
        "a batch of {batch} cannot be shared by {ranks} ranks: start {batch} at most, or make `batch` larger"
    )]
    FewSamples {
        /// Samples of a step.
        batch: usize,
        /// How many ranks there are.
        ranks: usize,
    },
    /// A rank's part of the batch has no equal parts.
    #[error(
        "`accumulate = {accumulate}` does not divide a rank's {samples} of the batch's {batch} samples: choose `batch` as a \
         multiple of {}, ranks times `accumulate`", ranks * accumulate
    )]
    Accumulate {
        /// The requested number of parts.
        accumulate: usize,
        /// Samples of the rank.
        samples: usize,
        /// Samples of a step.
        batch: usize,
        /// How many ranks there are.
        ranks: usize,
    },
}

impl RanksRefused {
    /// Checks that the training can be shared.
    pub(super) fn check(settings: &TrainSettings, ranks: usize) -> Result<(), Self> {
        let batch = settings.batch;
        let accumulate = settings.accumulate.max(1);
        if batch < ranks {
            return Err(Self::FewSamples { batch, ranks });
        }
        // The first rank's is the largest, the last rank's the smallest.
        let parts = [0, ranks - 1].map(|rank| reduce::part(batch, rank, ranks).len());
        match parts.into_iter().find(|part| part % accumulate > 0) {
            None => Ok(()),
            Some(samples) => Err(Self::Accumulate {
                accumulate,
                samples,
                batch,
                ranks,
            }),
        }
    }
}
