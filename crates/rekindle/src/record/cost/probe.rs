//! Runs and measures one operation, or a whole program.

use std::time::{Duration, Instant};

use burn_ir::OperationIr;

use super::costs::Costs;
use crate::{
    meter::MemoryReading,
    record::{
        RecordError,
        bridge::Interpreter,
        host::Host,
        operation::without_draw,
        options::Planning,
        program::{Prepared, Turn},
        recording::Recording,
    },
};

/// A third pass is made if the first took less time than this.
pub(super) const WORTH_ANOTHER: Duration = Duration::from_secs(2);

/// The time of operations in one pass, relative to one by one. One by one, their inputs are in the processor's caches:
/// observed on the CPU, 1.02 to 1.16. On a GPU each one also waits for the device, and none is fused: below 1.
///
/// Returns 1 if the run was too short to tell.
pub(super) fn relative_time(in_one_go: f64, one_by_one: f64) -> f64 {
    /// Seconds below which a ratio is noise.
    const LEAST: f64 = 2e-3;
    let ratio = in_one_go / one_by_one;
    if one_by_one >= LEAST && ratio.is_finite() && ratio > 0.0 {
        ratio
    } else {
        1.0
    }
}

impl Planning {
    /// Seconds of the program's operations in one pass, as a step runs them: the shorter of two passes. One is enough on
    /// the CPU if it is long; on a GPU kernels are compiled in the first.
    pub(super) fn time_pass(
        &self,
        recording: &Recording,
        program: &Prepared,
        costs: &Costs,
        start: &impl Fn() -> Result<Box<dyn Interpreter>, RecordError>,
    ) -> Result<f64, RecordError> {
        let (device, room) = (&self.device, self.new_room());
        let mut quickest = f64::INFINITY;
        for _ in 0..2 {
            let mut interpreter = start()?;
            let mut held = Vec::new();
            let mut host = Host::default();
            let mut moving = Duration::ZERO;
            let started = Instant::now();
            for (turn, ready) in program.turns(recording) {
                match turn {
                    Turn::Move(one) => {
                        room.make(one.bytes());
                        let _ = device.sync();
                        let started = Instant::now();
                        one.run(interpreter.as_mut(), &mut host)?;
                        let _ = device.sync();
                        moving += started.elapsed();
                    }
                    Turn::Run(run) => {
                        room.make(costs.taken_by(recording, run.number));
                        interpreter.run(without_draw(run.operation()));
                        run.finish(interpreter.as_mut());
                    }
                    Turn::Update(update) => update.skip(interpreter.as_mut()),
                }
                held.extend(ready.hand_out(interpreter.as_mut()));
            }
            let _ = device.sync();
            let took = started.elapsed() - moving;
            quickest = quickest.min(took.as_secs_f64());
            if self.on_host && took > WORTH_ANOTHER / 4 {
                break;
            }
        }
        Ok(quickest)
    }

    /// Seconds of one operation, and of all that the device had still to do.
    pub(super) fn time(&self, interpreter: &mut dyn Interpreter, operation: OperationIr) -> f64 {
        let start = Instant::now();
        interpreter.run(operation);
        // Errors are reported when values are read.
        let _ = self.device.sync();
        start.elapsed().as_secs_f64()
    }

    /// Memory and time of one operation.
    pub(super) fn measure(
        &self,
        interpreter: &mut dyn Interpreter,
        operation: OperationIr,
    ) -> Interval {
        let meter = &*self.meter;
        // Where pools serve exact sizes and start without free buffers, their peak is the operation's.
        meter.trim();
        wake_threads();
        meter.start_interval();
        let before = meter.read();
        let seconds = self.time(interpreter, operation);
        let after = meter.read();
        Interval {
            before,
            after,
            seconds,
        }
    }
}

/// Wakes the threads that CPU kernels run on. In a training step they are always awake and work in parallel, each with
/// its own scratch memory; an operation after a pause may finish before other threads join in.
fn wake_threads() {
    #[cfg(feature = "flex")]
    rayon::broadcast(|_| {});
}

/// Memory and time of one operation.
pub(super) struct Interval {
    before: MemoryReading,
    after: MemoryReading,
    pub(super) seconds: f64,
}

impl Interval {
    /// Bytes by which memory in use has increased afterwards.
    pub(super) fn kept(&self) -> u64 {
        let after = self.after.in_use_bytes.0;
        after.saturating_sub(self.before.in_use_bytes.0)
    }

    /// The peak, as far as known: the reserved bytes of exact pools include buffers that no reading showed.
    fn peak(&self) -> u64 {
        let reserved = self.after.reserved_bytes.unwrap_or_default();
        self.after.peak_in_use_bytes.max(reserved).0
    }

    /// Temporary bytes: how far the peak is above the bytes in use before and after.
    pub(super) fn temp_bytes(&self) -> u64 {
        let (before, after) = (self.before.in_use_bytes, self.after.in_use_bytes);
        self.peak().saturating_sub(after.max(before).0)
    }

    /// Whether the output reused an input's storage: the operation needed less than half of the output's bytes.
    pub(super) fn took_over(&self, output_bytes: u64) -> bool {
        self.peak().saturating_sub(self.before.in_use_bytes.0) < output_bytes / 2
    }
}

#[cfg(test)]
mod tests {
    use super::relative_time;

    #[test]
    fn a_pass_may_be_quicker_than_its_operations() {
        assert_eq!(relative_time(0.25, 1.0), 0.25);
        assert_eq!(relative_time(3.0, 1.0), 3.0);
    }

    #[test]
    fn what_is_no_measurement_changes_nothing() {
        for (in_one_go, one_by_one) in [(1.0, 0.0), (1e-4, 1e-3), (0.0, 1.0), (f64::INFINITY, 1.0)]
        {
            assert_eq!(relative_time(in_one_go, one_by_one), 1.0);
        }
    }
}
