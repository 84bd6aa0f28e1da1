//! Measures the runs of one operation.

use std::time::Instant;

use super::profiler::Profiler;
use crate::meter::{Interval, median, with_margin};

/// Minimum and maximum number of runs of each operation; the first [`GATHERED`] are not timed.
pub(super) const RUNS: (usize, usize) = (5, 24);

/// Number of first runs of each operation in which [threads are gathered](Meter::gather_threads): kernels hold scratch
/// memory for each thread that takes part, and on a busy machine all threads rarely hold it at the same time otherwise.
///
/// The very first run is a warm-up and is not counted: in it, threads allocate memory that they keep permanently.
pub(super) const GATHERED: usize = 2;

/// An operation is repeated until this many runs in a row have not raised the peak.
const RUNS_WITHOUT_A_HIGHER_PEAK: usize = 3;

/// Time for more runs of an operation that has settled.
const SECONDS_FOR_RUNS: f64 = 0.3;

/// Bytes that an operation left allocated, its peak above them, the peak itself, and the time.
#[derive(Default)]
pub(super) struct Cost {
    pub(super) kept: u64,
    pub(super) temp: u64,
    pub(super) peak: u64,
    pub(super) seconds: f64,
}

impl<O> Profiler<'_, O> {
    /// Runs an operation for the `run`th time, from 0, and measures it.
    ///
    /// Pools are trimmed first: if they serve each buffer by its exact size, everything that they then reserve during
    /// the operation belongs to it, including temporary buffers that no reading in between would show.
    pub(super) fn cost_of<T>(&self, run: usize, operation: impl FnOnce() -> T) -> (T, Cost) {
        let meter = self.meter;
        meter.trim();
        meter.gather_threads(run < GATHERED);
        let (result, interval) = Interval::of(meter, || {
            let result = operation();
            // A failure is reported when values are read.
            let _ = self.device.sync();
            result
        });
        meter.gather_threads(false);
        let Interval { before, after, .. } = &interval;
        let taken = match (before.reserved_bytes, after.peak_reserved_bytes) {
            (Some(reserved), Some(peak)) if meter.exact_sizes() => {
                before.in_use_bytes.0 + peak.0.saturating_sub(reserved.0)
            }
            _ => 0,
        };
        let peak = after.peak_in_use_bytes.0.max(taken);
        let cost = Cost {
            kept: interval.kept(),
            temp: interval.above(peak),
            peak,
            seconds: interval.seconds,
        };
        (result, cost)
    }

    /// The overhead of measuring: the median time of an empty operation.
    pub(super) fn idle_seconds(&self) -> f64 {
        let runs: Vec<Cost> = (0..RUNS.1).map(|run| self.cost_of(run, || ()).1).collect();
        summary(&runs).seconds
    }
}

/// Whether an operation needs another run after these runs.
pub(super) fn wants_another_run(runs: &[Cost], started: Instant) -> bool {
    let counted = runs.get(1..).unwrap_or_default();
    let highest = counted.iter().map(|cost| cost.temp).max().unwrap_or(0);
    let since = counted
        .iter()
        .position(|cost| cost.temp == highest)
        .map_or(0, |first| counted.len() - 1 - first);
    let settled = since >= RUNS_WITHOUT_A_HIGHER_PEAK;
    let has_time = started.elapsed().as_secs_f64() < SECONDS_FOR_RUNS;
    runs.len() < RUNS.0 || (runs.len() < RUNS.1 && (!settled || has_time))
}

/// Kept and temporary bytes, and the median time of the runs that were timed.
///
/// Kept bytes do not vary: if a run seems to keep more, a thread has allocated permanent scratch memory in it. So the
/// minimum of the kept bytes counts, and the maximum of the temporary bytes.
pub(super) fn summary(runs: &[Cost]) -> Cost {
    let counted = runs.get(1..).unwrap_or_default();
    let timed = runs.get(GATHERED..).unwrap_or_default();
    let most = counted.iter().map(|cost| cost.temp).max();
    Cost {
        kept: counted.iter().map(|cost| cost.kept).min().unwrap_or(0),
        temp: with_margin(most.unwrap_or(0)),
        peak: counted.iter().map(|cost| cost.peak).max().unwrap_or(0),
        seconds: median(timed.iter().map(|cost| cost.seconds)),
    }
}
