//! The phases of a training step, and what each changes.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// A part of a training step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The last step's gradients go.
    ZeroGrad,
    /// Everything before the loss.
    Forward,
    /// The loss itself.
    Loss,
    /// Everything after the loss, recomputed forwards included.
    Backward,
    /// The update of the parameters.
    Optimizer,
}

impl Phase {
    /// The phase's name as tables show it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ZeroGrad => "zero_grad",
            Self::Forward => "forward",
            Self::Loss => "loss",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
        }
    }
}

/// By how many bytes each phase changed what is in use, and what ran outside of phases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PhaseChanges([i64; PhaseChanges::KINDS.len()]);

impl PhaseChanges {
    /// All that an interval can be; `None` is outside of phases.
    pub const KINDS: [Option<Phase>; 6] = [
        None,
        Some(Phase::ZeroGrad),
        Some(Phase::Forward),
        Some(Phase::Loss),
        Some(Phase::Backward),
        Some(Phase::Optimizer),
    ];

    /// The bytes that a phase added; negative where it freed more.
    #[must_use]
    pub fn of(&self, phase: Option<Phase>) -> i64 {
        self.0[kind(phase)]
    }

    /// Counts bytes that a phase added.
    pub fn add(&mut self, phase: Option<Phase>, bytes: i64) {
        self.0[kind(phase)] += bytes;
    }
}

/// The place of a phase among [`PhaseChanges::KINDS`].
pub(super) fn kind(phase: Option<Phase>) -> usize {
    phase.map_or(0, |phase| phase as usize + 1)
}

/// Adds up what phases change, from what is in use at their ends.
#[derive(Debug, Default)]
pub(super) struct ChangeCounter(Mutex<(u64, PhaseChanges)>);

impl ChangeCounter {
    /// A phase ended with so many bytes in use.
    pub(super) fn end(&self, phase: Option<Phase>, in_use: u64) {
        let (before, changes) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(before, in_use);
        changes.add(phase, in_use as i64 - before as i64);
    }

    /// The changes so far. What comes counts anew.
    pub(super) fn take(&self) -> PhaseChanges {
        let (_, changes) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(changes)
    }
}
