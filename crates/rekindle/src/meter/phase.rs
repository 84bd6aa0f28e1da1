//! The phases of a training step, and how each changes the bytes in use.

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

/// By how many bytes each phase, and work outside of phases, changed the bytes in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PhaseChanges([i64; PhaseChanges::KINDS.len()]);

impl PhaseChanges {
    /// All kinds of interval; `None` is outside of phases.
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

    /// Adds bytes to a phase's change.
    pub fn add(&mut self, phase: Option<Phase>, bytes: i64) {
        self.0[kind(phase)] += bytes;
    }
}

/// The index of a phase in [`PhaseChanges::KINDS`].
pub(super) fn kind(phase: Option<Phase>) -> usize {
    phase.map_or(0, |phase| phase as usize + 1)
}

/// Sums the changes of phases, from the bytes in use at their ends.
#[derive(Debug, Default)]
pub(super) struct ChangeCounter(Mutex<(u64, PhaseChanges)>);

impl ChangeCounter {
    /// Records that a phase ended with `in_use` bytes in use.
    pub(super) fn end(&self, phase: Option<Phase>, in_use: u64) {
        let (before, changes) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(before, in_use);
        changes.add(phase, in_use as i64 - before as i64);
    }

    /// Returns the changes so far and resets them.
    pub(super) fn take(&self) -> PhaseChanges {
        let (_, changes) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(changes)
    }
}
