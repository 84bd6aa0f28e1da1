//! Sums the gradients of a shared step over its ranks while the backward pass runs.
//!
//! Gradients are collected in *buckets* ([`buckets`](super::buckets)): one network operation for many small gradients,
//! and many operations for a large model, so that the first ones run while the last gradients are still being computed
//! (Li et al., "PyTorch Distributed", VLDB 2020, section 3.2). A bucket holds
//!
//! ```text
//! w * gradient, for each of its parameters | w * loss, in the last one | 1 if this rank has failed
//! ```
//!
//! in 32 bits, w being the rank's share of the samples. Every rank reads the same sums, so all check the same values. A
//! rank that fails (out of memory, a rejected kernel) still begins all its buckets, so that all ranks abandon the step
//! together and begin the next one together.
//!
//! Means over ranks ([`synchronised`](crate::reduce::synchronised)) run in the order of the recording in every plan, but their
//! order relative to the gradients differs between plans. So buckets wait for the last mean. A rank that fails before
//! the last mean reports the failure in the next one.

mod reading;

use std::{
    collections::{HashMap, VecDeque},
    mem::take,
    time::{Duration, Instant},
};

use burn::tensor::{DType, Device, DispatchTensor, Shape, Tensor, TensorData};
use rekindle_plan::{Bytes, Seconds};

use super::{
    RecordError,
    rank::of_rank,
    ranks::{StepRanks, failures},
    recording::Recording,
};
use crate::reduce::{Pending, ReduceError};
pub use reading::{ExchangeReading, Exchanges, TimedExchange};

/// The loss, in place of a parameter's index.
const LOSS: usize = usize::MAX;

/// A sum over ranks that has begun.
struct UnderWay {
    what: Exchanges,
    begun: Instant,
    bytes: Bytes,
    sums: Pending<Vec<f32>>,
}

/// The exchange of one step.
pub(super) struct Exchange<'a> {
    ranks: &'a StepRanks,
    /// The gradients that are still to come, by tensor number, with the indices of their parameters: tied parameters have
    /// one gradient.
    gradients: HashMap<usize, Vec<usize>>,
    /// Gradients whose sums are not returned yet, by the index of their parameter, and the [`LOSS`]; the values of those
    /// whose buckets have begun are there.
    pieces: HashMap<usize, (Like, Vec<f32>)>,
    /// The whole batch's loss, after the last bucket.
    loss: Option<DispatchTensor>,
    /// Number of means over ranks so far.
    means: usize,
    /// Number of buckets begun.
    begun: usize,
    under_way: VecDeque<UnderWay>,
    /// Number of updated parameters; after the ranks have exchanged a failure, the largest number on any rank.
    pub(super) updated: usize,
    /// Whether the ranks have exchanged a failure.
    settled: bool,
    started: Instant,
    reading: ExchangeReading,
}

impl<'a> Exchange<'a> {
    /// That of a step which these ranks begin now.
    pub(super) fn new(ranks: &'a StepRanks) -> Self {
        Self {
            ranks,
            gradients: HashMap::new(),
            started: Instant::now(),
            reading: ExchangeReading::default(),
            pieces: HashMap::new(),
            loss: None,
            means: 0,
            begun: 0,
            under_way: VecDeque::new(),
            updated: 0,
            settled: false,
        }
    }

    /// Begins the step with the recording that runs.
    pub(super) fn start(&mut self, recording: &Recording) -> Result<(), RecordError> {
        self.started = Instant::now();
        for (place, one) in recording.parameters.iter().enumerate() {
            if let Some(gradient) = one.gradient {
                self.gradients.entry(gradient).or_default().push(place);
            }
        }
        let means = recording.synchronised().map(|(_, values)| values);
        match means.eq(self.ranks.means.iter().copied()) {
            true => Ok(()),
            false => Err(RecordError::Capture(
                "with a batch of this shape it takes other means over ranks than with the first one".into(),
            )),
        }
    }

    /// The mean over ranks of this rank's value, weighted by their shares.
    pub(super) fn mean(&mut self, own: DispatchTensor) -> Result<DispatchTensor, RecordError> {
        synchronise(&own);
        let started = Instant::now();
        let (like, values) = Like::take(own, self.ranks.share)?;
        self.means += 1;
        let one = self.begin(Exchanges::Mean, values, false);
        let Some(sums) = self.wait(one)? else {
            return Err(self.settle(None));
        };
        let mean = like.tensor(sums);
        self.reading.added += started.elapsed();
        self.begin_ready();
        Ok(mean)
    }

    /// Begins to sum values and, in one more element, the number of ranks that have failed.
    fn begin(&self, what: Exchanges, mut values: Vec<f32>, failed: bool) -> UnderWay {
        values.push(f32::from(u8::from(failed)));
        UnderWay {
            what,
            begun: Instant::now(),
            bytes: Bytes(size_of_val(values.as_slice()) as u64),
            sums: self.ranks.reducer.all_reduce(values),
        }
    }

    /// Waits for a sum; `None` if a rank has failed.
    fn wait(&mut self, one: UnderWay) -> Result<Option<Vec<f32>>, RecordError> {
        let (mut sums, done) = one.sums.wait_timed()?;
        let seconds = |from, to: Instant| Seconds(to.saturating_duration_since(from).as_secs_f64());
        self.reading.note(TimedExchange {
            what: one.what,
            bytes: one.bytes,
            start_s: seconds(self.started, one.begun),
            duration_s: seconds(one.begun, done),
        });
        let failed = sums.pop().is_none_or(|failed| failed > 0.0);
        Ok((!failed).then_some(sums))
    }

    /// Time since the step began.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Takes an output of the step if it is a gradient. Returns it if it is also another output.
    pub(super) fn offer(
        &mut self,
        recording: &Recording,
        tensor: usize,
        value: DispatchTensor,
    ) -> Result<Option<DispatchTensor>, RecordError> {
        let Some(mut places) = self.gradients.remove(&tensor) else {
            return Ok(Some(value));
        };
        let last = places.pop();
        for place in places {
            self.take(place, value.clone())?;
        }
        let other = recording.other_outputs().any(|output| output == tensor);
        let other = other.then(|| value.clone());
        if let Some(place) = last {
            self.take(place, value)?;
        }
        Ok(other)
    }

    /// Takes the gradient of a parameter for an update, and returns the gradients that are already summed, with the indices
    /// of their parameters. One bucket stays in progress while the next is filled.
    pub(super) fn offer_update(
        &mut self,
        place: usize,
        gradient: DispatchTensor,
    ) -> Result<Vec<(usize, DispatchTensor)>, RecordError> {
        self.take(place, gradient)?;
        match self.under_way.len() {
            0 | 1 => Ok(Vec::new()),
            _ => self.next().map(Option::unwrap_or_default),
        }
    }

    /// Takes the gradient of a parameter, and begins the buckets that it completes.
    fn take(&mut self, place: usize, gradient: DispatchTensor) -> Result<(), RecordError> {
        synchronise(&gradient);
        let started = Instant::now();
        let piece = Like::take(gradient, self.ranks.share)?;
        self.pieces.insert(place, piece);
        self.begin_ready();
        self.reading.added += started.elapsed();
        Ok(())
    }

    /// Begins buckets whose gradients are complete.
    fn begin_ready(&mut self) {
        if self.means < self.ranks.means.len() {
            return;
        }
        // The last bucket waits for the loss, and for everything else that can fail.
        while self.begun < self.ranks.buckets.len() {
            let taken = |(place, _): (usize, usize)| self.pieces.contains_key(&place);
            if !places(self.ranks, self.begun).all(taken) {
                break;
            }
            self.begin_bucket(false);
        }
    }

    /// Begins the next bucket. The values of a rank that has `failed` are not used.
    fn begin_bucket(&mut self, failed: bool) {
        let mut values = Vec::with_capacity(self.ranks.buckets[self.begun].elements() + 2);
        for (place, elements) in places(self.ranks, self.begun) {
            let end = values.len() + elements;
            if let Some((_, own)) = self.pieces.get_mut(&place) {
                values.extend(take(own));
            }
            values.resize(end, 0.0);
        }
        let one = self.begin(Exchanges::Gradients, values, failed);
        self.begun += 1;
        self.under_way.push_back(one);
    }

    /// Begins the remaining buckets after the step has run without a failure on this rank. `next` returns the remaining
    /// gradients.
    pub(super) fn close(&mut self, loss: DispatchTensor) -> Result<(), RecordError> {
        let started = Instant::now();
        let loss = Like::take(loss, self.ranks.share)?;
        self.pieces.insert(LOSS, loss);
        while self.begun < self.ranks.buckets.len() {
            self.begin_bucket(false);
        }
        self.reading.added += started.elapsed();
        Ok(())
    }

    /// Waits for the next bucket. Returns its gradients with the indices of their parameters, or `None` after the last
    /// bucket.
    ///
    /// # Errors
    ///
    /// If a rank or the network has failed.
    pub(super) fn next(&mut self) -> Result<Option<Vec<(usize, DispatchTensor)>>, RecordError> {
        let started = Instant::now();
        let Some(one) = self.under_way.pop_front() else {
            return Ok(None);
        };
        let Some(sums) = self.wait(one)? else {
            return Err(self.settle(None));
        };
        // The bucket that was waited for.
        let bucket = self.begun - self.under_way.len() - 1;
        let mut rest = sums.as_slice();
        let mut gradients = Vec::new();
        for (place, elements) in places(self.ranks, bucket) {
            let (own, others) = rest.split_at(elements);
            rest = others;
            let like = self.pieces.remove(&place);
            match like.map(|(like, _)| like.tensor(own.to_vec())) {
                Some(loss) if place == LOSS => self.loss = Some(loss),
                Some(gradient) => gradients.push((place, gradient)),
                None => {}
            }
        }
        self.reading.added += started.elapsed();
        Ok(Some(gradients))
    }

    /// The whole batch's loss, and what was measured, after the last bucket.
    pub(super) fn finish(&mut self) -> Result<(DispatchTensor, ExchangeReading), RecordError> {
        let loss = self.loss.take().ok_or(RecordError::LossElsewhere)?;
        Ok((loss, take(&mut self.reading)))
    }

    /// Whether all buckets are summed.
    pub(super) fn is_done(&self) -> bool {
        let begun = self.begun == self.ranks.buckets.len();
        begun && self.under_way.is_empty() && !self.settled
    }

    /// Abandons the step on all ranks: begins the remaining buckets and exchanges the error. Returns the error for this
    /// rank's caller.
    pub(super) fn abandon(&mut self, error: RecordError) -> RecordError {
        // After a network error the ranks cannot exchange anything.
        if self.settled || self.is_done() || matches!(error, RecordError::Reduce(_)) {
            return error;
        }
        self.settle(Some(error))
    }

    /// Ends the exchange of a step that some rank abandons; `own` is the error if it is this rank. Returns the error
    /// for this rank's caller.
    fn settle(&mut self, own: Option<RecordError>) -> RecordError {
        self.settled = true;
        self.pieces.clear();
        if let (Some(own), Some(values)) = (&own, self.ranks.means.get(self.means)) {
            let one = self.begin(Exchanges::Mean, vec![0.0; *values], true);
            if self.wait(one).is_err() {
                return own.clone();
            }
        }
        while self.begun < self.ranks.buckets.len() {
            self.begin_bucket(own.is_some());
        }
        while let Some(one) = self.under_way.pop_front() {
            if let Err(error) = self.wait(one) {
                return own.unwrap_or(error);
            }
        }
        let (updated, error) = failures(&self.ranks.reducer, self.updated, own);
        self.updated = updated;
        let no_reason =
            || ReduceError::Failed("a rank abandoned the step and gave no reason".into());
        error.unwrap_or_else(|| no_reason().into())
    }
}

/// The gradients of a bucket, by the indices of their parameters, with their numbers of elements; in the last one also the
/// loss.
fn places(ranks: &StepRanks, bucket: usize) -> impl Iterator<Item = (usize, usize)> {
    let is_last = bucket + 1 == ranks.buckets.len();
    let gradients = ranks.buckets[bucket].0.iter().copied();
    gradients.chain(is_last.then_some((LOSS, 1)))
}

/// Waits for the tensor's device, so that its pending computation is not timed as part of the exchange. Errors are
/// reported when values are read.
fn synchronise(tensor: &DispatchTensor) {
    let device = of_rank!(tensor, D => Tensor::<D>::from_dispatch(tensor.clone()).device());
    let _ = device.sync();
}

/// All properties of a tensor besides its values.
pub(super) struct Like {
    shape: Shape,
    dtype: DType,
    device: Device,
}

impl Like {
    /// Copies a tensor's values, in 32 bits and multiplied by the rank's share. The values of a rank without samples
    /// are ignored, whatever it computed.
    pub(super) fn take(
        tensor: DispatchTensor,
        share: f64,
    ) -> Result<(Self, Vec<f32>), RecordError> {
        let (like, values) = of_rank!(&tensor, D => {
            let tensor = Tensor::<D>::from_dispatch(tensor);
            let like = Self { shape: tensor.shape(), dtype: tensor.dtype(), device: tensor.device() };
            (like, tensor.try_into_vec_as::<f32>())
        });
        let mut values = values.map_err(|error| RecordError::Device(error.to_string()))?;
        for value in &mut values {
            *value = match share > 0.0 {
                true => (f64::from(*value) * share) as f32,
                false => 0.0,
            };
        }
        Ok((like, values))
    }

    /// The tensor with these values.
    pub(super) fn tensor(self, values: Vec<f32>) -> DispatchTensor {
        of_rank!(@ self.shape.num_dims(), D => {
            let data = TensorData::new(values, self.shape).convert_dtype(self.dtype);
            Tensor::<D>::from_data(data, (&self.device, self.dtype)).into_dispatch()
        })
    }
}
