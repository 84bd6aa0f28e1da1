//! What ranks that share a step agree on before its first run: that they run the same one, and in which buckets its
//! gradients are summed.
//!
//! Which gradients share a bucket, and the order of buckets, is the order in which rank 0's first plan hands them over. Every
//! rank's own plan, budget and times may differ; a plan that completes gradients in another order holds more of them at a
//! time, and begins buckets later. Ranks whose batches have equal shapes must have equal recordings; those of other
//! shapes may have other operations, and all have the same parameters.

use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use burn::tensor::{DType, Device, Shape};
use rekindle_plan::{
    Bytes,
    graph::{ExchangeCost, TensorId, Timetable},
};

use super::{
    RecordError, exchange_cost, planned::Planned, recording::Recording, step_plan::StepExchange,
    update::Update,
};
use crate::reduce::{ReduceError, Reducer, agree};

/// Gradients of a bucket, where none of them is larger by itself.
pub(super) const BUCKET_BYTES: usize = 4 << 20;

/// Bytes of a value in a bucket.
pub(super) const VALUE: usize = size_of::<f32>();

/// The ranks that share a step, as one of them sees it.
pub(super) struct Ranks {
    pub(super) reducer: Arc<dyn Reducer>,
    /// This rank's samples over those of all ranks.
    pub(super) share: f64,
    pub(super) buckets: Vec<Bucket>,
    /// Values of each mean over ranks, in the order in which all ranks take them.
    pub(super) means: Vec<usize>,
    /// What their exchange takes, once it is measured.
    pub(super) cost: Option<ExchangeCost>,
}

/// Gradients that are summed together: the places of their parameters in recordings, with their numbers of elements.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bucket(pub(super) Vec<(usize, usize)>);

impl Bucket {
    /// Cuts gradients, in their order, into buckets.
    fn cut(order: impl Iterator<Item = (usize, usize)>) -> Vec<Self> {
        let mut buckets = vec![Self(Vec::new())];
        for (place, elements) in order {
            let last = buckets.len() - 1;
            let filled = buckets[last].elements();
            if filled > 0 && (filled + elements) * VALUE > BUCKET_BYTES {
                buckets.push(Self(Vec::new()));
            }
            let last = buckets.len() - 1;
            buckets[last].0.push((place, elements));
        }
        buckets
    }

    /// Elements of all its gradients.
    pub(super) fn elements(&self) -> usize {
        self.0.iter().map(|(_, elements)| elements).sum()
    }
}

impl Ranks {
    /// Compares what this rank has planned with the others, takes over the order of gradients, and measures what exchanging
    /// them takes.
    ///
    /// # Errors
    ///
    /// On every rank alike: if one of them could not plan, or they train different models or run different steps.
    pub(super) fn agreed<A>(
        reducer: Arc<dyn Reducer>,
        planned: Result<(&Planned<A>, &Device), &RecordError>,
    ) -> Result<Self, RecordError> {
        if let (_, Some(error)) = failures(&*reducer, 0, planned.err().cloned()) {
            return Err(error);
        }
        let (planned, device) = planned.map_err(Clone::clone)?;
        let recording = &planned.measured.recording;
        agree(
            &*reducer,
            "parameters and synchronised operations of the steps",
            &parameters_of(recording),
        )?;
        same_steps(&*reducer, &planned.measured.shapes, recording.hash)?;
        let own = planned
            .timetables
            .as_ref()
            .map(|[own, _]| order(recording, own));
        let own = own.unwrap_or_default().into_iter();
        let own: Vec<u8> = own.flat_map(|place| (place as u64).to_le_bytes()).collect();
        let order = reducer.broadcast(0, own).wait()?;
        let (order, _) = order.as_chunks();
        let order = order
            .iter()
            .map(|place| u64::from_le_bytes(*place) as usize);
        let mut ranks = Self {
            share: 1.0 / reducer.ranks() as f64,
            buckets: buckets(recording, order),
            means: recording.synchronised().map(|(_, values)| values).collect(),
            cost: None,
            reducer,
        };
        ranks.cost = Some(exchange_cost::measured(&ranks, recording, device)?);
        Ok(ranks)
    }

    /// What the exchange takes of a step, whose ranks send each other parameters of these sizes.
    pub(super) fn predicted(
        &self,
        timetable: &Timetable,
        parameters: &[Bytes],
    ) -> Option<StepExchange> {
        let cost = self.cost?;
        Some(StepExchange {
            ring: cost.ring,
            link_measured: self.reducer.link().is_none(),
            taken: cost.simulate(
                timetable,
                &on_network(&self.buckets),
                parameters.iter().copied(),
            ),
        })
    }
}

/// What an exchange holds of the process's memory beside the gradients that a plan counts: a bucket and the sum of the one
/// before, and a copy of a gradient on its way in or out; for updates in the backward pass two buckets more, one that is
/// awaited while the next is filled, and what its updates take, which come later than planned; with means over ranks
/// all gradients, which wait for the last of these. Of gradients in 16 bits, also the half that 32 bits are more.
pub(super) fn staging(recording: &Recording, update: Update, largest_update: Bytes) -> Bytes {
    let trained = recording
        .parameters
        .iter()
        .filter(|one| one.gradient.is_some());
    let sizes = trained.map(|one| {
        let values = recording.tensors.shape(one.tensor).num_elements() * VALUE;
        (values as u64, recording.tensors.value_bytes(one.tensor))
    });
    let (mut all, mut largest, mut wider) = (0, 0, 0);
    for (values, bytes) in sizes {
        all += values;
        largest = largest.max(values);
        wider += values.saturating_sub(bytes);
    }
    let bucket = all.min(largest.max(BUCKET_BYTES as u64));
    let staging = Bytes(2 * bucket + largest);
    match update {
        Update::After => staging + Bytes(wider),
        Update::InBackward => {
            let waits = recording.synchronised().next().is_some();
            let waiting = if waits { all } else { 0 };
            staging + Bytes(2 * bucket + waiting) + largest_update
        }
    }
}

/// All ranks learn of those that have failed, each by its message, and of the most updates that one has made: what this
/// rank's caller is told, if any failed.
pub(super) fn failures(
    reducer: &dyn Reducer,
    updated: usize,
    own: Option<RecordError>,
) -> (usize, Option<RecordError>) {
    let message = own.as_ref().map(ToString::to_string).unwrap_or_default();
    let message = [&(updated as u64).to_le_bytes(), message.as_bytes()].concat();
    let all = match reducer.all_gather(message).wait() {
        Ok(all) => all,
        Err(error) => return (updated, Some(own.unwrap_or(error.into()))),
    };
    let all = all.iter().filter_map(|one| one.split_first_chunk());
    let all: Vec<_> = all
        .map(|(updated, message)| (u64::from_le_bytes(*updated), message))
        .collect();
    let most = all.iter().map(|(updated, _)| *updated as usize).max();
    let first = all.iter().position(|(_, message)| !message.is_empty());
    let other = first.map(|rank| RecordError::OtherRank {
        rank,
        message: String::from_utf8_lossy(all[rank].1).into_owned(),
    });
    (most.unwrap_or(updated), own.or(other))
}

/// Places of the parameters that have gradients, in the order in which a program hands these over.
pub(super) fn order(recording: &Recording, timetable: &Timetable) -> Vec<usize> {
    let mut order: Vec<usize> = timetable.handed.iter().map(|one| one.gradient).collect();
    // None is left out, whatever the program does.
    let known: HashSet<usize> = order.iter().copied().collect();
    let (_, all) = gradients(recording);
    order.extend(all.into_iter().filter(|place| !known.contains(place)));
    order
}

/// The buckets of parameters in this order.
pub(super) fn buckets(
    recording: &Recording,
    order: impl IntoIterator<Item = usize>,
) -> Vec<Bucket> {
    let sized = order.into_iter().filter_map(|place| {
        let parameter = recording.parameters.get(place)?;
        Some((
            place,
            recording.tensors.shape(parameter.tensor).num_elements(),
        ))
    });
    Bucket::cut(sized)
}

/// Buckets with the bytes of their gradients on the network.
pub(super) fn on_network(buckets: &[Bucket]) -> Vec<Vec<(usize, Bytes)>> {
    let sized = |&(place, elements): &(usize, usize)| (place, Bytes((elements * VALUE) as u64));
    buckets
        .iter()
        .map(|bucket| bucket.0.iter().map(sized).collect())
        .collect()
}

/// The gradients of a recording's parameters, and the parameters' places.
pub(super) fn gradients(recording: &Recording) -> (Vec<TensorId>, Vec<usize>) {
    let parameters = recording.parameters.iter().enumerate();
    let gradients =
        parameters.filter_map(|(place, one)| Some((TensorId(one.gradient? as u32), place)));
    gradients.unzip()
}

/// Equal where ranks train the same parameters with the same version of this crate, and take the same means.
fn parameters_of(recording: &Recording) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
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

/// Ranks whose batches have equal shapes have equal recordings.
fn same_steps(
    reducer: &dyn Reducer,
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

/// A recording's parameters by the numbers of their tensors.
#[derive(Default)]
pub(super) struct Parameters {
    /// Their places in the recording.
    pub(super) place: HashMap<usize, usize>,
    gradient_of: HashMap<usize, Vec<usize>>,
    /// Gradients that the step hands out as something else too.
    pub(super) other_outputs: HashSet<usize>,
}

impl Parameters {
    /// Those of a recording.
    pub(super) fn of(recording: &Recording) -> Self {
        let mut parameters = Self::default();
        for (place, one) in recording.parameters.iter().enumerate() {
            parameters.place.insert(one.tensor, place);
            if let Some(gradient) = one.gradient {
                parameters
                    .gradient_of
                    .entry(gradient)
                    .or_default()
                    .push(place);
            }
        }
        let others = recording
            .auxiliary
            .iter()
            .chain(recording.input_gradients.iter().flatten());
        let others = others.chain(recording.statistics.iter().map(|(_, tensor)| tensor));
        parameters.other_outputs = others.copied().chain([recording.loss]).collect();
        parameters
    }

    /// Places of the parameters whose gradient is this tensor.
    pub(super) fn of_gradient(&self, tensor: usize) -> impl Iterator<Item = usize> {
        self.gradient_of.get(&tensor).into_iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cut_at_their_size() {
        let full = BUCKET_BYTES / VALUE;
        let cut = |sizes: &[usize]| -> Vec<usize> {
            let buckets = Bucket::cut(sizes.iter().copied().enumerate());
            buckets.iter().map(|bucket| bucket.0.len()).collect()
        };
        assert_eq!(cut(&[]), [0]);
        assert_eq!(cut(&[1, 2, 3]), [3]);
        assert_eq!(cut(&[full - 1, 1, 1]), [2, 1]);
        assert_eq!(cut(&[1, full, 1]), [1, 1, 1]);
        assert_eq!(cut(&[3 * full, 1, full - 1, 2]), [1, 2, 1]);
    }
}
