//! Memory and time of a training step, phase by phase.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use serde::{Deserialize, Serialize};

use super::{MemoryReading, Meter};

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

/// Memory at the end of a phase, its peaks during the phase, and the phase's time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PhaseReading {
    /// The phase.
    pub phase: Phase,
    /// Time of the phase, queued work included.
    pub seconds_s: f64,
    /// The memory.
    #[serde(flatten)]
    pub memory: MemoryReading,
}

/// Takes a reading at the end of each phase. Without a meter it takes none.
pub struct PhaseRecorder<'a> {
    meter: Option<&'a dyn Meter>,
    started: Instant,
    readings: Vec<PhaseReading>,
}

impl<'a> PhaseRecorder<'a> {
    /// Starts the first phase.
    #[must_use]
    pub fn start(meter: Option<&'a dyn Meter>) -> Self {
        if let Some(meter) = meter {
            meter.end_phase(None);
            meter.start_interval();
        }
        Self {
            meter,
            started: Instant::now(),
            readings: Vec::new(),
        }
    }

    /// Ends a phase and starts the next one.
    pub fn end(&mut self, phase: Phase) {
        if let Some(meter) = self.meter {
            let memory = meter.read();
            self.readings.push(PhaseReading {
                phase,
                seconds_s: self.started.elapsed().as_secs_f64(),
                memory,
            });
            meter.end_phase(Some(phase));
            meter.start_interval();
            self.started = Instant::now();
        }
    }

    /// Notes the bytes in use within a phase.
    pub fn sample(&self) {
        if let Some(meter) = self.meter {
            meter.sample();
        }
    }

    /// The readings so far.
    #[must_use]
    pub fn finish(self) -> Vec<PhaseReading> {
        self.readings
    }
}
