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

/// Takes a reading at the end of each phase.
pub struct PhaseRecorder<'a> {
    meter: &'a dyn Meter,
    started: Instant,
    /// The peaks of the phase, as far as it was read.
    peaks: MemoryReading,
    readings: Vec<PhaseReading>,
}

impl<'a> PhaseRecorder<'a> {
    /// Starts the first phase.
    #[must_use]
    pub fn start(meter: &'a dyn Meter) -> Self {
        meter.start_interval();
        Self {
            meter,
            started: Instant::now(),
            peaks: MemoryReading::default(),
            readings: Vec::new(),
        }
    }

    /// The memory in the middle of a phase, with its peaks since the last reading.
    pub fn read(&mut self) -> MemoryReading {
        let memory = self.meter.read();
        self.meter.start_interval();
        self.peaks = memory.after(self.peaks);
        memory
    }

    /// Ends a phase and starts the next one.
    pub fn end(&mut self, phase: Phase) {
        let memory = self.meter.read();
        self.readings.push(PhaseReading {
            phase,
            seconds_s: self.started.elapsed().as_secs_f64(),
            memory: memory.after(std::mem::take(&mut self.peaks)),
        });
        self.meter.start_interval();
        self.started = Instant::now();
    }

    /// The readings so far.
    #[must_use]
    pub fn finish(self) -> Vec<PhaseReading> {
        self.readings
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use rekindle_plan::Bytes;

    use super::*;
    use crate::meter::PeakMemory;

    /// Bytes are set by hand.
    #[derive(Default)]
    struct Hand {
        now: AtomicU64,
        peak: AtomicU64,
    }

    impl Hand {
        fn holds(&self, bytes: u64) {
            self.now.store(bytes, Relaxed);
            self.peak.fetch_max(bytes, Relaxed);
        }
    }

    impl Meter for Hand {
        fn read(&self) -> MemoryReading {
            MemoryReading {
                in_use_bytes: Bytes(self.now.load(Relaxed)),
                peak_in_use_bytes: Bytes(self.peak.load(Relaxed)),
                ..MemoryReading::default()
            }
        }

        fn start_interval(&self) {
            self.peak.store(self.now.load(Relaxed), Relaxed);
        }

        fn lifetime_peak(&self) -> PeakMemory {
            PeakMemory::default()
        }
    }

    #[test]
    fn a_phase_has_the_highest_peak_of_its_readings() {
        let hand = Hand::default();
        let mut phases = PhaseRecorder::start(&hand);
        let mut peaks = Vec::new();
        for (peak, after) in [(5, 2), (9, 3), (4, 1)] {
            hand.holds(peak);
            hand.holds(after);
            peaks.push(phases.read().peak_in_use_bytes.0);
        }
        assert_eq!(peaks, [5, 9, 4]);
        phases.end(Phase::Forward);
        hand.holds(6);
        hand.holds(2);
        phases.end(Phase::Loss);
        let read = phases.finish();
        let read = read.iter().map(|one| (one.phase, one.memory));
        let read = read.map(|(phase, one)| (phase, one.peak_in_use_bytes.0, one.in_use_bytes.0));
        assert!(read.eq([(Phase::Forward, 9, 1), (Phase::Loss, 6, 2)]));
    }
}
