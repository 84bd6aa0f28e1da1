//! The tensors that each pass of a step makes and frees, by the plan, and what is in use after it, as measured.

use rekindle_plan::{Bytes, Chain};
use schemars::JsonSchema;
use serde::Serialize;

use crate::timeline::Pass;
use rekindle::record::driver::{AlikeTensors, SpanChange, SpanReading};

/// Format tag of a file of [`TrackedPass`]es, one a line.
pub const TRACK_FORMAT: &str = "rekindle-track/1";

/// One pass of a tracked step. Where a batch runs in parts, of its last part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TrackedPass {
    /// Number of the step, from 1.
    pub step: usize,
    /// What the pass is there for.
    pub pass: Pass,
    /// Its stage, from 0; `null` for the loss and the update.
    pub stage: Option<usize>,
    /// The stage's name; `null` for the loss and the update.
    pub layer: Option<String>,
    /// Tensors that are there after it and were not before it, most bytes first.
    pub appeared: Vec<AlikeTensors>,
    /// Tensors that were there before it and are not after it, most bytes first.
    pub went: Vec<AlikeTensors>,
    /// Bytes in use after it, measured.
    pub in_use_bytes: Bytes,
}

impl TrackedPass {
    /// The passes of a step on the stages of `chain`, each with its reading.
    pub(super) fn all(
        step: usize,
        changes: Vec<SpanChange>,
        readings: &[SpanReading],
        chain: &Chain,
    ) -> Vec<Self> {
        let passes = changes.into_iter().zip(readings);
        let passes = passes.map(|(change, reading)| {
            let stage = change.span.as_ref().map(|span| span.stage.0);
            let named = stage.and_then(|stage| chain.stages.get(stage));
            Self {
                step,
                pass: change.span.as_ref().map_or(Pass::Optimizer, Pass::of),
                stage: stage.filter(|_| named.is_some()),
                layer: named.map(|stage| stage.name.clone()),
                appeared: change.appeared,
                went: change.went,
                in_use_bytes: reading.memory.in_use_bytes,
            }
        });
        passes.collect()
    }
}
