//! What the runs of one operation cost.

use std::time::Instant;

use super::profiler::Profiler;
use crate::meter::{Interval, median, with_margin};

/// Fewest and most runs of each operation; the first [`GATHERED`] are not timed.
pub(super) const RUNS: (usize, usize) = (5, 24);

/// The first runs of each operation, in which [threads are gathered](Meter::gather_threads): kernels hold scratch for
/// each thread that takes part, and on a busy machine it takes luck to see all of them at once.
///
/// The first of all is a warm-up, of which nothing counts: threads allocate what they keep for good.
pub(super) const GATHERED: usize = 2;

/// An operation runs again until so many runs in a row have not peaked higher.
const RUNS_WITHOUT_A_HIGHER_PEAK: usize = 3;

/// Time for more runs of an operation that has settled.
const SECONDS_FOR_RUNS: f64 = 0.3;

/// Bytes that an operation left behind, its peak above them, the peak itself, and the time.
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
    /// Pools are trimmed first: where they serve each buffer by its exact size, all that they take during the operation
    /// is then its own, temporary buffers that no reading in between would show included.
    pub(super) fn cost_of<T>(&self, run: usize, operation: impl FnOnce() -> T) -> (T, Cost) {
        let meter = self.meter;
        meter.trim();
        meter.gather_threads(run < GATHERED);
        let (result, interval) = Interval::of(meter, || {
            let result = operation();
            // A failure shows where values are read.
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

    /// What measuring itself takes: the median time of measuring nothing.
    pub(super) fn idle_seconds(&self) -> f64 {
        let runs: Vec<Cost> = (0..RUNS.1).map(|run| self.cost_of(run, || ()).1).collect();
        summary(&runs).seconds
    }
}

/// Whether an operation whose runs so far are these runs once more.
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
/// What is kept does not vary; a run that seems to keep more is one in which a thread allocated scratch for good, so
/// the least counts. Of temporary bytes the most counts.
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
