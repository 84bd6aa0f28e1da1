//! A step that ranks share: its gradients are summed over them while its backward pass runs.
//!
//! Gradients go into *buckets*, each of about [`BUCKET_BYTES`]: one operation of the network for many small gradients, and
//! many operations for a large model, so that the first run while the last gradients are still computed (Li et al.,
//! "PyTorch Distributed", VLDB 2020, section 3.2). Which gradients share a bucket, and the order of buckets, is rank 0's
//! order of completion in its first plan; every rank's own plan, budget and times may differ. A bucket holds
//!
//! ```text
//! w * gradient, for each of its parameters | w * loss, in the last one | 1 if this rank has failed
//! ```
//!
//! in 32 bits, w being the rank's share of the samples. Numbers are what every rank reads after the sum, so all
//! ranks check the same values, and a rank that fails (out of memory, a refused kernel) still begins all its buckets: all
//! ranks give the step up together, and the next one finds them in step with each other.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::{Duration, Instant},
};

use burn::tensor::{DType, Device, DispatchTensor, Shape, Tensor, TensorData};
use rekindle_plan::Bytes;

use super::{
    RecordError,
    planned::Planned,
    program::{Prepared, Turn},
    rank::of_rank,
    recording::Recording,
    update::Update,
};
use crate::reduce::{Pending, ReduceError, Reducer, agree};

/// Gradients of a bucket, where none of them is larger by itself.
const BUCKET_BYTES: usize = 4 << 20;

/// Bytes of a value in a bucket.
const VALUE: usize = size_of::<f32>();

/// The ranks that share a step, as one of them sees it.
pub(super) struct Ranks {
    reducer: Arc<dyn Reducer>,
    /// This rank's samples over those of all ranks.
    pub(super) share: f64,
    buckets: Vec<Bucket>,
}

/// Gradients that are summed together: the places of their parameters in recordings, with their numbers of elements.
#[derive(Debug, PartialEq)]
struct Bucket(Vec<(usize, usize)>);

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

    fn elements(&self) -> usize {
        self.0.iter().map(|(_, elements)| elements).sum()
    }
}

impl Ranks {
    /// Compares what this rank has planned with the others, and takes over the order of gradients.
    ///
    /// # Errors
    ///
    /// On every rank alike: if one of them could not plan, or they train different models or run different steps.
    pub(super) fn agreed<A>(
        reducer: Arc<dyn Reducer>,
        planned: Result<&Planned<A>, &RecordError>,
    ) -> Result<Self, RecordError> {
        if let (_, Some(error)) = failures(&*reducer, 0, planned.err().cloned()) {
            return Err(error);
        }
        let planned = planned.map_err(Clone::clone)?;
        let recording = &planned.measured.recording;
        agree(
            &*reducer,
            "the parameters of the steps",
            &parameters_of(recording),
        )?;
        same_steps(&*reducer, &planned.measured.shapes, recording.hash)?;
        let order = completed(recording, &planned.prepared);
        let order: Vec<u8> = order
            .iter()
            .flat_map(|place| (*place as u64).to_le_bytes())
            .collect();
        let order = reducer.broadcast(0, order).wait()?;
        let (order, _) = order.as_chunks();
        let order = order
            .iter()
            .map(|place| u64::from_le_bytes(*place) as usize);
        let order = order.filter_map(|place| {
            let parameter = recording.parameters.get(place)?;
            Some((
                place,
                recording.tensors.shape(parameter.tensor).num_elements(),
            ))
        });
        Ok(Self {
            share: 1.0 / reducer.ranks() as f64,
            buckets: Bucket::cut(order),
            reducer,
        })
    }

    /// What one step of a recording takes from now on.
    pub(super) fn exchange(&self) -> Exchange<'_> {
        Exchange {
            ranks: self,
            parameters: Parameters::default(),
            pieces: HashMap::new(),
            loss: None,
            begun: 0,
            under_way: VecDeque::new(),
            updated: 0,
            settled: false,
            waited: Duration::ZERO,
        }
    }
}

/// What an exchange holds of the process's memory beside the gradients that a plan counts: a bucket and its sum, and two
/// copies of a gradient on its way in or out; for updates in the backward pass another bucket, whose sum is awaited
/// while the next is filled, and what its updates take, which come later than planned. Of gradients in 16 bits, also the
/// half that 32 bits are more.
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
    let staging = Bytes(2 * bucket + 2 * largest);
    match update {
        Update::After => staging + Bytes(wider),
        Update::InBackward => staging + Bytes(2 * bucket) + largest_update,
    }
}

/// All ranks learn of those that have failed, each by its message, and of the most updates that one has made: what this
/// rank's caller is told, if any failed.
fn failures(
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

/// Equal where ranks train the same parameters with the same version of this crate.
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
        parts
            .iter()
            .any(|other| other.0 == shapes && other.1 != recording)
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

/// Places of the parameters whose gradients a program completes, in that order.
fn completed(recording: &Recording, program: &Prepared) -> Vec<usize> {
    let parameters = Parameters::of(recording);
    let mut order: Vec<usize> = Vec::new();
    for turn in program.turns(recording) {
        match turn {
            Turn::Run(run) => order.extend(
                run.ready()
                    .flat_map(|tensor| parameters.of_gradient(tensor)),
            ),
            Turn::Update(one) => order.extend(parameters.place.get(&one.parameter.tensor)),
        }
    }
    // None is left out, whatever the program does.
    let known: HashSet<usize> = order.iter().copied().collect();
    let trained = |place: &usize| recording.parameters[*place].gradient.is_some();
    let rest =
        (0..recording.parameters.len()).filter(|place| trained(place) && !known.contains(place));
    order.extend(rest);
    order
}

/// A recording's parameters by the numbers of their tensors.
#[derive(Default)]
struct Parameters {
    place: HashMap<usize, usize>,
    gradient_of: HashMap<usize, Vec<usize>>,
    /// Gradients that the step hands out as something else too.
    other_outputs: HashSet<usize>,
}

impl Parameters {
    fn of(recording: &Recording) -> Self {
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

    fn of_gradient(&self, tensor: usize) -> impl Iterator<Item = usize> {
        self.gradient_of.get(&tensor).into_iter().flatten().copied()
    }
}

/// A complete gradient that waits for its bucket, times the share, and what it was.
struct Piece {
    values: Vec<f32>,
    like: Like,
}

/// What a tensor is besides its values.
#[derive(Clone)]
struct Like {
    shape: Shape,
    dtype: DType,
    device: Device,
}

impl Like {
    /// A tensor's values in 32 bits, in memory of its own.
    fn take(tensor: DispatchTensor) -> Result<(Self, Vec<f32>), RecordError> {
        let (like, data) = of_rank!(&tensor, D => {
            let tensor = Tensor::<D>::from_dispatch(tensor);
            let like = Self { shape: tensor.shape(), dtype: tensor.dtype(), device: tensor.device() };
            (like, tensor.try_into_data())
        });
        let wrong = |error: &dyn std::fmt::Display| RecordError::Device(error.to_string());
        let data = data.map_err(|error| wrong(&error))?;
        let values = data
            .try_into_vec_as::<f32>()
            .map_err(|error| wrong(&error))?;
        Ok((like, values))
    }

    fn tensor(self, values: Vec<f32>) -> DispatchTensor {
        let Self {
            shape,
            dtype,
            device,
        } = self;
        of_rank!(@ shape.num_dims(), D => {
            let data = TensorData::new(values, shape).convert_dtype(dtype);
            Tensor::<D>::from_data(data, (&device, dtype)).into_dispatch()
        })
    }
}

/// The exchange of one step.
pub(super) struct Exchange<'a> {
    ranks: &'a Ranks,
    parameters: Parameters,
    /// By their parameters' places.
    pieces: HashMap<usize, Piece>,
    loss: Option<(Like, f32)>,
    /// Buckets that were begun.
    begun: usize,
    under_way: VecDeque<(Vec<Option<Like>>, Pending<Vec<f32>>)>,
    /// Parameters that were updated: most on any rank, once the ranks have told each other of a failure.
    pub(super) updated: usize,
    /// Whether the ranks have told each other of a failure.
    settled: bool,
    waited: Duration,
}

/// What a step's ranks have together.
pub(super) struct Shared {
    /// The whole batch's loss.
    pub(super) loss: DispatchTensor,
    /// How long this rank waited for the network and for other ranks.
    pub(super) waited: Duration,
}

impl Exchange<'_> {
    /// Which recording runs.
    pub(super) fn start(&mut self, recording: &Recording) {
        self.parameters = Parameters::of(recording);
    }

    /// Takes a tensor that the step hands out, if it is a gradient; what is something else too comes back.
    pub(super) fn offer(
        &mut self,
        tensor: usize,
        value: DispatchTensor,
    ) -> Result<Option<DispatchTensor>, RecordError> {
        let places: Vec<usize> = self.parameters.of_gradient(tensor).collect();
        let Some((&last, first)) = places.split_last() else {
            return Ok(Some(value));
        };
        for &place in first {
            self.take(place, value.clone())?;
        }
        let other = self
            .parameters
            .other_outputs
            .contains(&tensor)
            .then(|| value.clone());
        self.take(last, value)?;
        Ok(other)
    }

    /// Takes the gradient of the parameter whose tensor is `parameter`, to update it, and hands out those that are summed:
    /// places of parameters with their gradients. One bucket stays under way, while the next is filled.
    pub(super) fn offer_update(
        &mut self,
        parameter: usize,
        gradient: DispatchTensor,
    ) -> Result<Vec<(usize, DispatchTensor)>, RecordError> {
        if let Some(&place) = self.parameters.place.get(&parameter) {
            self.take(place, gradient)?;
        }
        match self.under_way.len() {
            0 | 1 => Ok(Vec::new()),
            _ => self.next().map(Option::unwrap_or_default),
        }
    }

    fn take(&mut self, place: usize, gradient: DispatchTensor) -> Result<(), RecordError> {
        let (like, mut values) = Like::take(gradient)?;
        scale(&mut values, self.ranks.share);
        self.pieces.insert(place, Piece { values, like });
        // The last waits for the loss, and for all else that can fail.
        let (all, pieces) = (&self.ranks.buckets, &self.pieces);
        let ready = |bucket: &Bucket| bucket.0.iter().all(|(place, _)| pieces.contains_key(place));
        let begun = all[self.begun..all.len() - 1]
            .iter()
            .take_while(|bucket| ready(bucket));
        for _ in 0..begun.count() {
            self.begin(false);
        }
        Ok(())
    }

    /// Begins the next bucket. Nothing of a rank that has `failed` counts.
    fn begin(&mut self, failed: bool) {
        let bucket = &self.ranks.buckets[self.begun];
        self.begun += 1;
        let last = self.begun == self.ranks.buckets.len();
        let mut values = Vec::with_capacity(bucket.elements() + 2);
        let mut likes = Vec::with_capacity(bucket.0.len());
        for (place, elements) in &bucket.0 {
            let piece = self.pieces.remove(place);
            let end = values.len() + elements;
            let piece = piece.map(|piece| {
                values.extend_from_slice(&piece.values);
                piece.like
            });
            values.resize(end, 0.0);
            likes.push(piece);
        }
        let loss = self.loss.as_ref().filter(|_| last);
        values.extend([
            loss.map_or(0.0, |(_, loss)| *loss),
            f32::from(u8::from(failed)),
        ]);
        self.under_way
            .push_back((likes, self.ranks.reducer.all_reduce(values)));
    }

    /// Begins what is left: the step has run, and this rank has not failed. `next` hands out the rest.
    pub(super) fn close(&mut self, loss: DispatchTensor) -> Result<(), RecordError> {
        let (like, mut value) = Like::take(loss)?;
        scale(&mut value, self.ranks.share);
        self.loss = Some((like, value.first().copied().unwrap_or_default()));
        while self.begun < self.ranks.buckets.len() {
            self.begin(false);
        }
        Ok(())
    }

    /// Waits for the next bucket: places of parameters with their gradients, or `None` after the last.
    ///
    /// # Errors
    ///
    /// If a rank has failed by then, or the network.
    pub(super) fn next(&mut self) -> Result<Option<Vec<(usize, DispatchTensor)>>, RecordError> {
        let Some((likes, values)) = self.wait()? else {
            return Ok(None);
        };
        let Some((values, [loss, failed])) = values.split_last_chunk() else {
            return Err(RecordError::LossElsewhere);
        };
        if *failed > 0.0 {
            return Err(self.settle(None));
        }
        // Only the last bucket has it.
        if let Some((_, whole)) = self.loss.as_mut().filter(|_| self.under_way.is_empty()) {
            *whole = *loss;
        }
        let bucket = self.bucket_done();
        let mut rest = values;
        let mut gradients = Vec::with_capacity(likes.len());
        for (&(place, elements), like) in bucket.0.iter().zip(likes) {
            let (own, others) = rest.split_at(elements);
            rest = others;
            gradients.extend(like.map(|like| (place, like.tensor(own.to_vec()))));
        }
        Ok(Some(gradients))
    }

    /// The bucket that was waited for last.
    fn bucket_done(&self) -> &Bucket {
        &self.ranks.buckets[self.begun - self.under_way.len() - 1]
    }

    fn wait(&mut self) -> Result<Option<(Vec<Option<Like>>, Vec<f32>)>, RecordError> {
        let Some((likes, pending)) = self.under_way.pop_front() else {
            return Ok(None);
        };
        let started = Instant::now();
        let values = pending.wait()?;
        self.waited += started.elapsed();
        Ok(Some((likes, values)))
    }

    /// What the ranks have together, after the last bucket.
    pub(super) fn finish(&mut self) -> Result<Shared, RecordError> {
        let (like, loss) = self.loss.take().ok_or(RecordError::LossElsewhere)?;
        Ok(Shared {
            loss: like.tensor(vec![loss]),
            waited: self.waited,
        })
    }

    /// Gives the step up on all ranks: begins what is left, and tells why. Returns what this rank's caller is told.
    pub(super) fn abandon(&mut self, error: RecordError) -> RecordError {
        let done = self.begun == self.ranks.buckets.len() && self.under_way.is_empty();
        // A broken network is beyond agreement.
        if self.settled || done || matches!(error, RecordError::Reduce(_)) {
            return error;
        }
        self.settle(Some(error))
    }

    /// Ends the exchange of a step that some rank gives up: `own` is why, if it is this one. Returns what this rank's caller
    /// is told.
    fn settle(&mut self, own: Option<RecordError>) -> RecordError {
        self.settled = true;
        self.pieces.clear();
        while self.begun < self.ranks.buckets.len() {
            self.begin(own.is_some());
        }
        loop {
            match self.wait() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => return own.unwrap_or(error),
            }
        }
        let (updated, error) = failures(&*self.ranks.reducer, self.updated, own);
        self.updated = updated;
        let no_reason =
            || ReduceError::Failed("a rank gave the step up and did not say why".into());
        error.unwrap_or_else(|| no_reason().into())
    }
}

/// Nothing of a rank without samples counts, whatever it computed.
fn scale(values: &mut [f32], share: f64) {
    for value in values {
        *value = match share > 0.0 {
            true => (f64::from(*value) * share) as f32,
            false => 0.0,
        };
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
