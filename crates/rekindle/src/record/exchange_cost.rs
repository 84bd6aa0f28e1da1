//! Measures the cost of an exchange before the first step: the link jointly by all ranks, staging by each rank.
//!
//! The link is that of a [`Ring`] that sums one value, and a bucket of values, in the measured times. A time is the
//! shortest of any rank, because the other ranks only wait for the last one to begin, and the shortest of a few
//! all-reduces, so that other work is not counted. Broadcasts, which sharded updates need, are timed in rounds of one
//! broadcast from each of a few ranks, until all ranks are done. Staging is timed by exchanging the first buckets
//! without other ranks.

use std::{sync::Arc, time::Instant};

use burn::tensor::{Device, DispatchTensor, Tensor};
use rekindle_plan::{
    Bytes, Seconds,
    graph::{ExchangeCost, Rate, Ring},
};

use super::{
    RecordError,
    buckets::{BUCKET_BYTES, VALUE},
    exchange::Exchange,
    rank::of_rank,
    ranks::StepRanks,
    recording::Recording,
};
use crate::reduce::{ReduceError, Reducer, Rehearsal};

/// Number of timed operations of each size, after one for warm-up.
const ROUNDS: usize = 5;
/// Maximum number of ranks that broadcast in each round.
const ROOTS: usize = 4;
/// Time in seconds after which no further operations are timed.
const ENOUGH_S: f64 = 0.5;
/// Number of timings of staging. The shortest counts.
const STAGED: usize = 3;
/// Minimum bytes of gradients that are staged, if there are that many.
const STAGED_BYTES: usize = 64 << 20;

/// Measures the cost of exchanging a recording's gradients.
pub(super) fn measured(
    ranks: &StepRanks,
    recording: &Recording,
    device: &Device,
) -> Result<ExchangeCost, RecordError> {
    let reducer = &*ranks.reducer;
    let (ring, broadcast) = match reducer.link() {
        Some(link) => {
            let ranks = reducer.ranks();
            (Ring { ranks, link }, None)
        }
        None => {
            let (ring, broadcast) = measured_link(reducer, ranks)?;
            (ring, Some(broadcast))
        }
    };
    let mut staged_s_per_byte = f64::INFINITY;
    for _ in 0..STAGED {
        staged_s_per_byte = staged_s_per_byte.min(staging(ranks, recording, device)?);
    }
    Ok(ExchangeCost {
        ring,
        broadcast,
        staged_s_per_byte,
    })
}

/// The ring, and what a broadcast takes.
fn measured_link(reducer: &dyn Reducer, ranks: &StepRanks) -> Result<(Ring, Rate), ReduceError> {
    let largest = ranks.buckets.iter().map(|bucket| bucket.elements()).max();
    let large = largest.unwrap_or_default().clamp(2, BUCKET_BYTES / VALUE);
    let all_reduce = |values: usize| {
        let summed = || Ok(reducer.all_reduce(vec![0.0; values]).wait_timed()?.1);
        timed(reducer, summed, f64::min)
    };
    let roots = reducer.ranks().min(ROOTS);
    let broadcast = |values: usize| {
        let sent = || {
            for root in 0..roots {
                let own = match root == reducer.rank() {
                    true => vec![0; values * VALUE],
                    false => Vec::new(),
                };
                reducer.broadcast(root, own).wait()?;
            }
            Ok(Instant::now())
        };
        Ok(timed(reducer, sent, f64::max)? / roots as f64)
    };
    let bytes = |values: usize| Bytes((values * VALUE) as u64);
    let line = |of: &dyn Fn(usize) -> Result<f64, ReduceError>| -> Result<_, ReduceError> {
        let at = |values| Ok((bytes(values), Seconds(of(values)?)));
        Ok((at(1)?, at(large)?))
    };
    let (small, large) = line(&all_reduce)?;
    let ring = Ring::of_times(reducer.ranks(), small, large);
    let (small, large) = line(&broadcast)?;
    Ok((ring, Rate::of_times(small, large)))
}

/// Seconds of an operation of all ranks, the shortest or the longest of any rank; all ranks get the same number.
fn timed(
    reducer: &dyn Reducer,
    operation: impl Fn() -> Result<Instant, ReduceError>,
    of_ranks: fn(f64, f64) -> f64,
) -> Result<f64, ReduceError> {
    let (mut shortest, mut all) = (f64::INFINITY, 0.0);
    for round in 0..=ROUNDS {
        let started = Instant::now();
        let own = operation()?
            .saturating_duration_since(started)
            .as_secs_f64();
        let each = reducer.all_gather(own.to_le_bytes().to_vec()).wait()?;
        let each = each.iter().filter_map(|one| one.as_slice().try_into().ok());
        let together = each.map(f64::from_le_bytes).fold(own, of_ranks);
        all += together;
        if round > 0 || all > ENOUGH_S {
            shortest = shortest.min(together);
        }
        if all > ENOUGH_S {
            break;
        }
    }
    Ok(shortest)
}

/// Seconds that the computing thread takes to copy a byte of gradients to its bucket, and back.
fn staging(ranks: &StepRanks, recording: &Recording, device: &Device) -> Result<f64, RecordError> {
    let mut staged = 0;
    let buckets = ranks.buckets.iter().take_while(|bucket| {
        let more = staged < STAGED_BYTES;
        staged += bucket.elements() * VALUE;
        more
    });
    let alone = StepRanks {
        reducer: Arc::new(Rehearsal::alone()),
        share: 1.0,
        buckets: buckets.cloned().collect(),
        means: Vec::new(),
        cost: None,
    };
    let device = &device.clone().without_autodiff();
    let ones = |tensor: usize| -> DispatchTensor {
        let (shape, dtype) = (
            recording.tensors.shape(tensor),
            recording.tensors.dtype(tensor),
        );
        of_rank!(@ shape.num_dims(), D => Tensor::<D>::ones(shape.clone(), (device, dtype)).into_dispatch())
    };
    let mut exchange = Exchange::new(&alone);
    let mut bytes = 0;
    for bucket in &alone.buckets {
        for (place, elements) in &bucket.0 {
            exchange.take(*place, ones(recording.parameters[*place].tensor))?;
            bytes += elements * VALUE;
        }
        // One bucket at a time, because the plan counts the memory of no more.
        exchange.next()?;
    }
    exchange.close(Tensor::<1>::ones([1], device).into_dispatch())?;
    while exchange.next()?.is_some() {}
    let reading = exchange.finish()?.exchange;
    let took = reading.taken + reading.returned;
    Ok(took.as_secs_f64() / bytes.max(1) as f64)
}
