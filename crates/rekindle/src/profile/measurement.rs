//! One operation between two meter readings.

use std::time::Instant;

use crate::meter::Meter;

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

/// Share by which temporary bytes are rounded up: threads do not all come to their highest point at once.
pub(crate) const SCRATCH_MARGIN: f64 = 1.0 / 16.0;

/// Bytes that an operation left behind, its peak above them, the peak itself, and the time.
#[derive(Default)]
pub(super) struct Cost {
    pub(super) kept: u64,
    pub(super) temp: u64,
    pub(super) peak: u64,
    pub(super) seconds: f64,
}

/// Runs an operation for the `run`th time, from 0, and measures it.
///
/// Pools are trimmed first: where they serve each buffer by its exact size, all that they take during the operation
/// is then its own, temporary buffers that no reading in between would show included.
pub(super) fn measure<T>(
    meter: &dyn Meter,
    run: usize,
    operation: impl FnOnce() -> T,
) -> (T, Cost) {
    meter.trim();
    let before = meter.read();
    meter.start_interval();
    wake_threads();
    meter.gather_threads(run < GATHERED);
    let started = Instant::now();
    let result = operation();
    let after = meter.read();
    let seconds = started.elapsed().as_secs_f64();
    meter.gather_threads(false);
    let (held, holds) = (before.in_use_bytes.0, after.in_use_bytes.0);
    let kept = holds.saturating_sub(held);
    let taken = match (before.reserved_bytes, after.peak_reserved_bytes) {
        (Some(before), Some(peak)) if meter.exact_sizes() => held + peak.0.saturating_sub(before.0),
        _ => 0,
    };
    let peak = after.peak_in_use_bytes.0.max(taken);
    let temp = peak.saturating_sub(held + kept);
    let cost = Cost {
        kept,
        temp,
        peak,
        seconds,
    };
    (result, cost)
}

/// Wakes the threads that CPU kernels run on. In a training step they are always awake and work side by side, each with
/// scratch of its own; an operation that comes after a pause may be over before the others join in.
pub(crate) fn wake_threads() {
    #[cfg(feature = "flex")]
    rayon::broadcast(|_| {});
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
    let mut seconds: Vec<f64> = timed.iter().map(|cost| cost.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let most = counted.iter().map(|cost| cost.temp).max();
    Cost {
        kept: counted.iter().map(|cost| cost.kept).min().unwrap_or(0),
        temp: with_margin(most.unwrap_or(0)),
        peak: counted.iter().map(|cost| cost.peak).max().unwrap_or(0),
        seconds: seconds.get(seconds.len() / 2).copied().unwrap_or(0.0),
    }
}

fn with_margin(temp: u64) -> u64 {
    temp + (temp as f64 * SCRATCH_MARGIN).ceil() as u64
}

/// What measuring itself takes: the median time of measuring nothing.
pub(super) fn idle_seconds(meter: &dyn Meter) -> f64 {
    let runs: Vec<Cost> = (0..RUNS.1)
        .map(|run| measure(meter, run, || ()).1)
        .collect();
    summary(&runs).seconds
}
