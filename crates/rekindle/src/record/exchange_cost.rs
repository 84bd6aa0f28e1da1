//! Measures the cost of an exchange before the first step: the link jointly by all ranks, staging by each rank.
//!
//! The link is that of a [`Ring`] that sums one value, and a bucket of values, in the measured times. A time is the
//! shortest of any rank, because the other ranks only wait for the last one to begin, and the shortest of a few
//! all-reduces, so that other work is not counted. Staging is timed by copying the first gradients to a bucket and back.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use rekindle_plan::{
    Bytes, Seconds,
    graph::{ExchangeCost, Ring},
};

use super::{
    RecordError,
    buckets::{BUCKET_BYTES, Bucket, VALUE},
    exchange::Like,
    recording::Recording,
};
use crate::reduce::{ReduceError, Reducer};

/// Number of timed all-reduces of each size, after one for warm-up.
const ROUNDS: usize = 5;
/// Seconds of one from which on one is enough.
const SLOW_S: f32 = 0.1;
/// Number of timings of staging. The shortest counts.
const STAGED: usize = 3;
/// Minimum bytes of gradients that are staged, if there are that many.
const STAGED_BYTES: usize = 64 << 20;

/// Measures the cost of exchanging a recording's gradients.
pub(super) fn measured(
    reducer: &Reducer,
    buckets: &[Bucket],
    recording: &Recording,
    device: &Device,
) -> Result<ExchangeCost, RecordError> {
    let ring = match reducer.link {
        Some(link) => Ring {
            ranks: reducer.ranks(),
            link,
        },
        None => measured_ring(reducer, buckets)?,
    };
    let mut staged_s_per_byte = f64::INFINITY;
    for _ in 0..STAGED {
        staged_s_per_byte = staged_s_per_byte.min(staging(buckets, recording, device)?);
    }
    Ok(ExchangeCost {
        ring,
        staged_s_per_byte,
    })
}

/// The ring in which all-reduces of one value, and of a bucket, take the measured times.
fn measured_ring(reducer: &Reducer, buckets: &[Bucket]) -> Result<Ring, ReduceError> {
    let largest = buckets.iter().map(|bucket| bucket.elements()).max();
    let large = largest.unwrap_or_default().clamp(2, BUCKET_BYTES / VALUE);
    let at = |values: usize| {
        let bytes = Bytes((values * VALUE) as u64);
        Ok::<_, ReduceError>((bytes, Seconds(timed(reducer, values)?)))
    };
    Ok(Ring::of_times(reducer.ranks(), at(1)?, at(large)?))
}

/// Seconds of an all-reduce of so many values, the shortest of any rank; all ranks get the same number.
fn timed(reducer: &Reducer, values: usize) -> Result<f64, ReduceError> {
    let once = || {
        let started = Instant::now();
        let (_, done) = reducer.all_reduce(vec![0.0; values]).wait_timed()?;
        Ok::<_, ReduceError>(done.saturating_duration_since(started).as_secs_f64())
    };
    // All ranks decide alike how often a slow network is timed: by what the first time took all of them.
    let first = reducer.all_reduce(vec![once()? as f32]).wait()?;
    let slow = first.iter().sum::<f32>() > SLOW_S * reducer.ranks() as f32;
    let mut shortest = f64::INFINITY;
    let rounds = if slow { 1 } else { ROUNDS };
    for _ in 0..rounds {
        shortest = shortest.min(once()?);
    }
    let each = reducer.all_gather(shortest.to_le_bytes().to_vec()).wait()?;
    let each = each.iter().filter_map(|one| one.as_slice().try_into().ok());
    Ok(each.map(f64::from_le_bytes).fold(shortest, f64::min))
}

/// Seconds that the computing thread takes to copy a byte of gradients to its bucket, and back.
fn staging(buckets: &[Bucket], recording: &Recording, device: &Device) -> Result<f64, RecordError> {
    let device = &device.clone().without_autodiff();
    let (mut bytes, mut took) = (0, Duration::ZERO);
    for &(place, elements) in buckets.iter().flat_map(|bucket| &bucket.0) {
        if bytes >= STAGED_BYTES {
            break;
        }
        let dtype = recording.tensors.dtype(recording.parameters[place].tensor);
        let ones = Tensor::<1>::ones([elements], (device, dtype)).into_dispatch();
        let _ = device.sync();
        let started = Instant::now();
        let (like, values) = Like::take(ones, 1.0)?;
        let mut bucket = Vec::with_capacity(elements);
        bucket.extend(values);
        drop(like.tensor(bucket.clone()));
        took += started.elapsed();
        bytes += elements * VALUE;
    }
    Ok(took.as_secs_f64() / bytes.max(1) as f64)
}
