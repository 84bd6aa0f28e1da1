//! From figures of one part of a batch to those of a training step.

use rekindle::meter::Count;
use serde::{Deserialize, Serialize};

/// What makes the figures of one part of a batch those of a whole step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Terms {
    /// Parts that a batch runs in.
    pub(super) micro_batches: usize,
    /// Which bytes count.
    pub(super) count: Count,
    /// Values that training changes.
    pub(super) param_count: u64,
}
