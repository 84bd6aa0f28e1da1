//! Agreement between ranks before the first run of a shared step: that they run the same step, the buckets in which its
//! gradients are summed, and the [way](super::ways) in which it is planned.
//!
//! Gradients are assigned to buckets in the order in which rank 0's plain step completes them. Plans, budgets and times
//! may differ between ranks; a plan that completes gradients in another order holds more of them at a time, and begins
//! buckets later. Ranks whose batches have equal shapes must have equal recordings. Recordings for other shapes may
//! have other operations, but all must have the same parameters.

use std::hash::{Hash, Hasher};

use burn::tensor::{DType, Device, Shape};

use rekindle_plan::Bytes;
use siphasher::sip::SipHasher13;

use super::{
    RecordError, buckets::buckets, exchange_cost, planned::PlannedRecording, ranks::StepRanks,
    recording::Recording,
};
use crate::reduce::{ReduceError, Reducer, agree};

impl StepRanks {
    /// Compares what this rank has planned with the others, takes over the order of gradients, and measures what exchanging
    /// them takes.
    ///
    /// # Errors
    ///
    /// The same on every rank, if they train different models or run different steps.
    pub(super) fn agreed<A>(
        reducer: Reducer,
        planned: &PlannedRecording<A>,
        device: &Device,
    ) -> Result<Self, RecordError> {
        let recording = &planned.measured.recording;
        agree(
            &reducer,
            "parameters and synchronised operations of the steps",
            &parameters_of(recording),
        )?;
        same_steps(&reducer, &planned.measured.shapes, recording.fingerprint())?;
        let own = planned.timetables.iter().flat_map(|[own, _]| &own.order);
        let own: Vec<u8> = own
            .flat_map(|&place| (place as u64).to_le_bytes())
            .collect();
        let order = reducer.broadcast(0, own).wait()?;
        let (order, _) = order.as_chunks();
        let order = order
            .iter()
            .map(|place| u64::from_le_bytes(*place) as usize);
        let buckets = buckets(recording, order);
        Ok(Self {
            share: 1.0 / reducer.ranks() as f64,
            means: recording.synchronised().map(|(_, values)| values).collect(),
            cost: exchange_cost::measured(&reducer, &buckets, recording, device)?,
            buckets,
            reducer,
        })
    }
}

/// The first rank that has no plan in a way, with the smallest budget for which it has one; `None` if there is none, or a rank
/// failed for another reason, which is an error here.
pub(super) fn first_short(
    reducer: &Reducer,
    own: Result<Option<Bytes>, ()>,
) -> Result<Option<(usize, Bytes)>, ReduceError> {
    let said = match own {
        Ok(None) => Vec::new(),
        Ok(Some(smallest)) => smallest.0.to_le_bytes().to_vec(),
        Err(()) => vec![0],
    };
    let all = reducer.all_gather(said).wait()?;
    if all.iter().any(|said| said.len() == 1) {
        return Ok(None);
    }
    let mut short = all.iter().enumerate().filter_map(|(rank, said)| {
        let smallest = said.as_slice().try_into().ok()?;
        Some((rank, Bytes(u64::from_le_bytes(smallest))))
    });
    Ok(short.next())
}

/// A hash that is equal if ranks train the same parameters with the same version of this crate, and compute the same
/// means over ranks.
fn parameters_of(recording: &Recording) -> [u8; 8] {
    let mut hasher = SipHasher13::new();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    for one in &recording.parameters {
        one.path.hash(&mut hasher);
        recording
            .tensors
            .shape(one.tensor)
            .as_slice()
            .hash(&mut hasher);
        recording.tensors.value_bytes(one.tensor).hash(&mut hasher);
        one.gradient.is_some().hash(&mut hasher);
    }
    let means: Vec<_> = recording.synchronised().collect();
    means.hash(&mut hasher);
    hasher.finish().to_le_bytes()
}

/// Checks that ranks whose batches have equal shapes have equal recordings.
fn same_steps(
    reducer: &Reducer,
    shapes: &[(Shape, DType)],
    recording: u64,
) -> Result<(), RecordError> {
    let shapes = format!("{shapes:?}").into_bytes();
    let own = [shapes, recording.to_le_bytes().to_vec()].concat();
    let all = reducer.all_gather(own).wait()?;
    let parts: Vec<_> = all
        .iter()
        .map(|one| one.split_at(one.len().saturating_sub(8)))
        .collect();
    let unlike = |&rank: &usize| {
        let (shapes, recording) = parts[rank];
        let first = parts.iter().find(|one| one.0 == shapes);
        first.is_some_and(|first| first.1 != recording)
    };
    let ranks: Vec<usize> = (1..parts.len()).filter(unlike).collect();
    match ranks.is_empty() {
        true => Ok(()),
        false => Err(RecordError::Reduce(ReduceError::Differ {
            what: "the operations of the steps".into(),
            ranks,
        })),
    }
}
