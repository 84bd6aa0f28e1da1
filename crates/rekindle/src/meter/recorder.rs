//! Memory and time of a training step, phase by phase.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{
    phase::Phase,
    reader::{MemoryReading, Meter},
};

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

/// Takes a reading at the end of each phase; without a meter, none.
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
            meter.start_interval();
            self.started = Instant::now();
        }
    }

    /// The readings so far.
    #[must_use]
    pub fn finish(self) -> Vec<PhaseReading> {
        self.readings
    }
}
