//! [`Recorded`]: options of a step that is recorded, and its first plan.

use std::{rc::Rc, sync::Arc, time::Instant};

use burn::module::Module;
use rekindle_plan::{Bytes, PlanRequest, graph::GraphPlanner};

use super::{
    Link, Optimizer, PlanElsewhere, RecordError, Step, Update, Wanted, bridge, given,
    optimizer::{self, Trial},
    options::Planning,
    planned::MeasuredRecording,
    planning::planned,
    recording::Recording,
    update_costs::{EitherUpdate, UpdateCosts},
};
use crate::{
    activation::{Activation, device_of},
    meter::{Count, HostMeter, Meter, PoolMeter},
    reduce::Reducer,
    size::Size,
    step_result::StepResult,
};

/// Records one training step: whatever `step` computes from the model and the batch, and burn's backward of the loss
/// that it returns. Nothing is computed.
///
/// `step` returns the loss, a tensor of one element, or the loss and more: `(loss, logits)`, any
/// [`Activation`]. The batch is a tensor, a tuple of tensors, or any activation.
///
/// # Errors
///
/// If the step cannot be recorded: see [`RecordError`], which says what to change.
pub fn record<'a, M, I, R, F>(
    model: &'a M,
    batch: &'a I,
    step: F,
) -> Result<Recorded<'a, M, I, R, F>, RecordError>
where
    M: Module,
    I: Activation,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
    let started = Instant::now();
    let taken = bridge::take(model, batch, false, &step)?;
    Ok(Recorded {
        model,
        batch,
        step,
        recorded: Recording::new(taken, Update::After),
        record_time: started.elapsed(),
        options: Options::default(),
    })
}

/// A recorded step that is not planned yet.
pub struct Recorded<'a, M, I, R: StepResult, F> {
    pub(super) model: &'a M,
    pub(super) batch: &'a I,
    pub(super) step: F,
    /// With the auxiliary output on the recording device.
    pub(super) recorded: (Recording, R::Auxiliary),
    pub(super) record_time: std::time::Duration,
    pub(super) options: Options<M>,
}

/// Measures an optimizer on a model.
type MeasureOptimizer<M> = Box<dyn Fn(&M, Update, &dyn Meter, Trial) -> UpdateCosts>;

pub(super) struct Options<M> {
    optimizer: Option<MeasureOptimizer<M>>,
    either: bool,
    meter: Option<Arc<dyn Meter>>,
    input_gradients: bool,
    check: bool,
    compare: bool,
    count: Count,
    elsewhere: Option<PlanElsewhere>,
    link: Option<Link>,
    later: Bytes,
    between: Bytes,
    reducer: Option<Arc<dyn Reducer>>,
}

impl<M> Default for Options<M> {
    fn default() -> Self {
        Self {
            optimizer: None,
            either: false,
            meter: None,
            input_gradients: false,
            check: true,
            compare: true,
            count: Count::default(),
            elsewhere: None,
            link: None,
            later: Bytes::ZERO,
            between: Bytes::ZERO,
            reducer: None,
        }
    }
}

impl<M, I, R, F> Recorded<'_, M, I, R, F>
where
    M: Module,
    I: Activation,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
    /// Counts what this optimizer's step takes, and the state that its first step leaves. Without it a budget bounds
    /// the step alone.
    #[must_use]
    pub fn with_optimizer<O: Optimizer>(mut self, optimizer: &O) -> Self {
        let optimizer = optimizer.for_trial();
        self.options.optimizer = Some(Box::new(move |model, update, meter, trial| {
            optimizer::measured(model, &optimizer, (update, trial), meter)
        }));
        self
    }

    /// As [`with_optimizer`](Self::with_optimizer), for [`Step::run_updating`]: each parameter is updated in the backward
    /// pass, as soon as its gradient is complete and nothing that is still to run reads its old value, and the gradient is
    /// freed. Plans count it so: gradients no longer wait for the last one.
    ///
    /// ```
    /// # use burn::{nn::{Linear, LinearConfig}, optim::SgdConfig, prelude::*};
    /// # use rekindle::record::RecordError;
    /// # #[global_allocator]
    /// # static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
    /// # let device = Device::flex().autodiff();
    /// let mut model = vec![LinearConfig::new(64, 64).init(&device), LinearConfig::new(64, 64).init(&device)];
    /// let batch = || Tensor::<2>::ones([2, 64], &device);
    /// let loss = |layers: &Vec<Linear>, input: Tensor<2>| {
    ///     layers.iter().fold(input, |x, layer| layer.forward(x)).square().mean()
    /// };
    /// let mut optimizer = SgdConfig::new().init();
    ///
    /// let step = rekindle::record(&model, &batch(), loss)?
    ///     .with_update_in_backward(&optimizer)
    ///     .within("1GiB")?;
    /// for _ in 0..3 {
    ///     let output = step.run_updating(&mut model, batch(), 1e-2, &mut optimizer)?;
    ///     assert!(output.gradients.is_empty());
    /// }
    /// # Ok::<(), RecordError>(())
    /// ```
    ///
    /// What needs all gradients at once cannot be had with it: their sum over parts of a batch, their common norm, or
    /// a step that is given up after the backward. See [`Step::run_updating`] for what happens to a step that fails.
    #[must_use]
    pub fn with_update_in_backward<O: Optimizer>(mut self, optimizer: &O) -> Self {
        self.recorded.0.set_update(Update::InBackward);
        self.with_optimizer(optimizer)
    }

    /// As [`with_update_in_backward`](Self::with_update_in_backward), for a step that may also be planned with an update
    /// after it: [`Step::plan_updating`] says which, [`Step::update`] tells. What the optimizer takes is measured for both,
    /// large parameters by a part of them, so that measuring stays in a budget that gradients alone would exceed.
    #[must_use]
    pub fn with_either_update<O: Optimizer>(mut self, optimizer: &O) -> Self {
        self.options.either = true;
        self.with_update_in_backward(optimizer)
    }

    /// Reads memory by this meter. Without it: the process's allocator on the CPU backend, the pools on GPUs.
    #[must_use]
    pub fn with_meter(mut self, meter: Arc<dyn Meter>) -> Self {
        self.options.meter = Some(meter);
        self
    }

    /// Whether [`Step::run`] reads one number that depends on the loss and every gradient before it hands anything out
    /// (the default): it finds values that are not finite, and a device that ran out of memory.
    #[must_use]
    pub fn with_finite_check(mut self, on: bool) -> Self {
        self.options.check = on;
        self
    }

    /// Whether the step is compared with its recording from time to time (the default). Comparing records it again, which
    /// takes memory: without it, whoever wrote the step answers for it that nothing but the batch and the parameters
    /// changes what it computes. Batches of other shapes are noticed all the same.
    #[must_use]
    pub fn with_comparison(mut self, on: bool) -> Self {
        self.options.compare = on;
        self
    }

    /// Which bytes the budget bounds on a GPU: what the device loses (the default), or live buffers.
    #[must_use]
    pub fn with_count(mut self, count: Count) -> Self {
        self.options.count = count;
        self
    }

    /// Has plans made in another process, where `elsewhere` can.
    #[must_use]
    pub fn with_planner(mut self, elsewhere: Option<PlanElsewhere>) -> Self {
        self.options.elsewhere = elsewhere;
        self
    }

    /// Lets plans move tensors to the host's memory between forward and backward, over a link that
    /// [`measured_link`](super::measured_link) has measured, where that is faster than recomputing them or nothing else fits. Copies are beside
    /// the budget, which bounds the device; [`Link::host_bytes`] bounds them.
    #[must_use]
    pub fn with_link(mut self, link: Option<Link>) -> Self {
        self.options.link = link;
        self
    }

    /// Counts bytes that will be held while the step runs and are not there when it is planned, such as the sum of
    /// gradients where a batch runs in parts.
    #[must_use]
    pub fn with_held(mut self, bytes: Bytes) -> Self {
        self.options.later = bytes;
        self
    }

    /// Counts bytes that will be taken for a while between steps, when neither activations nor gradients are there, such as
    /// copies that a snapshot is written from.
    #[must_use]
    pub fn with_held_between(mut self, bytes: Bytes) -> Self {
        self.options.between = bytes;
        self
    }

    /// Shares the step with other [ranks](crate::reduce), each of which runs it on its part of the batch: loss and
    /// gradients are the whole batch's, for a loss that is a mean over samples. [`Step::set_share`] says how large this
    /// rank's part is, if parts are not equal.
    ///
    /// All ranks record, plan and run their steps together, each within its own budget; they begin with
    /// [equal parameters](crate::reduce::broadcast_parameters). While the backward pass runs, complete gradients are summed
    /// in buckets; on the CPU backend a plan counts what that holds. Each rank's optimizer then makes the same update, or a
    /// [`Sharded`](crate::Sharded) one that of its part of the parameters. A step that fails on one rank fails on all, and the
    /// next can succeed. Auxiliary output, running statistics (but those of
    /// [`synchronised_batch_norm`](crate::synchronised_batch_norm)) and
    /// [gradients of the batch](Self::with_input_gradients) are the rank's own.
    ///
    /// Before the first step the ranks measure their link, by a few all-reduces of two sizes, and each rank what it takes to
    /// copy gradients to their buckets and back. The [predicted time](super::StepPlan::predicted_time) includes
    /// [what that adds](super::StepPlan::exchange), beside the rest of the backward pass and for ranks that are as fast as this one,
    /// with means over ranks and what a sharded optimizer sends; [`Output::exchange`](super::Output::exchange) is what it added.
    #[must_use]
    pub fn with_reducer(mut self, reducer: impl Reducer + 'static) -> Self {
        self.options.reducer = Some(Arc::new(reducer));
        self
    }

    /// Asks for the gradients of the batch's float tensors as well.
    ///
    /// # Errors
    ///
    /// As [`record()`]: the step is recorded again.
    pub fn with_input_gradients(mut self) -> Result<Self, RecordError> {
        self.options.input_gradients = true;
        let taken = bridge::take(self.model, self.batch, true, &self.step)?;
        self.recorded = Recording::new(taken, self.recorded.0.update);
        Ok(self)
    }

    /// The bytes of the largest tensor that an operation of the step makes: any program of the step has room for it.
    pub fn largest_tensor(&self) -> Bytes {
        let recording = &self.recorded.0;
        let made = recording.operations.iter().flat_map(|one| one.outputs());
        let bytes = made.map(|tensor| recording.tensors.value_bytes(tensor));
        Bytes(bytes.max().unwrap_or_default())
    }

    /// Number of operations of the step.
    pub fn operations(&self) -> usize {
        self.recorded.0.operations.len()
    }

    /// The fastest plan whose peak is within `budget`: a size such as `"2GiB"`, [`Bytes`], or a share such as `"60%"` of
    /// the peak that is predicted for the plain step.
    ///
    /// The peak is the process's on the CPU backend (whatever it holds counts), and on GPUs what the pools reserve and
    /// the driver's context. Measures the step's operations on the model and batch that were recorded, a few times,
    /// inside the budget. Parameters, running statistics and the random number generator stay as they are.
    ///
    /// A share is taken of [`StepPlan::plain_peak`](super::StepPlan::plain_peak), which counts as the budget does: parameters, optimizer and whatever
    /// else the process holds are in it. Its bytes are found with this batch and hold for batches of other shapes too.
    /// Plans leave 1% of their budget free, so `"100%"` is a little less than the plain step needs. Until the bytes are
    /// known, the step is measured in its leanest order.
    ///
    /// # Errors
    ///
    /// If no plan fits (the error has the smallest budget that would), memory cannot be measured, or the model's
    /// backend is not one that recordings run on.
    pub fn within(
        self,
        budget: impl TryInto<Size, Error: Into<RecordError>>,
    ) -> Result<Step<M, I, R, F>, RecordError> {
        self.within_by(budget, GraphPlanner::Auto)
    }

    /// As [`within`](Self::within), with one planner.
    ///
    /// # Errors
    ///
    /// As [`within`](Self::within).
    pub fn within_by(
        self,
        budget: impl TryInto<Size, Error: Into<RecordError>>,
        planner: GraphPlanner,
    ) -> Result<Step<M, I, R, F>, RecordError> {
        let share = match budget.try_into().map_err(Into::into)? {
            Size::Bytes(bytes) => return self.planned(Some(bytes), planner.into()),
            share @ Size::Percent(_) => share,
        };
        // Where nothing is free, the leanest order is measured.
        let free = Some(Bytes::ZERO);
        let mut step = self.measured(None, free, GraphPlanner::None.into(), &mut |_, _| {})?;
        step.plan_share(share, planner, false)?;
        Ok(step)
    }

    /// Nothing is recomputed: the plain step, run by the same interpreter.
    ///
    /// Its peak helps to choose a budget: [`Step::plan`] tells it, and [`Step::set_budget`] plans for one without
    /// measuring again.
    ///
    /// ```
    /// # use burn::{nn::{Linear, LinearConfig}, prelude::*};
    /// # use rekindle::{plan::graph::GraphPlanner, record::RecordError};
    /// # #[global_allocator]
    /// # static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(4, 4).init(&device);
    /// # let batch = Tensor::<2>::ones([2, 4], &device);
    /// # let loss = |layer: &Linear, input: Tensor<2>| layer.forward(input).square().mean();
    /// let mut step = rekindle::record(&model, &batch, loss)?.plain()?;
    /// println!("the plain step takes {}", step.plan().plain_peak);
    /// step.set_budget("1GiB", GraphPlanner::Auto)?;
    /// # Ok::<(), RecordError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`within`](Self::within), but for budgets.
    pub fn plain(self) -> Result<Step<M, I, R, F>, RecordError> {
        self.planned(None, GraphPlanner::None.into())
    }

    /// Stages cut into `segments` equal segments, as PyTorch's `checkpoint_sequential` does: the last is not run again.
    ///
    /// Stages are those between the layers of a [`Sequential`](crate::Sequential), or where the recorded forward pass is
    /// narrow.
    ///
    /// # Errors
    ///
    /// As [`within`](Self::within), but for budgets.
    pub fn segments(self, segments: usize) -> Result<Step<M, I, R, F>, RecordError> {
        self.planned(None, GraphPlanner::Uniform(Some(segments)).into())
    }

    fn planned(
        self,
        budget: Option<Bytes>,
        wanted: Wanted,
    ) -> Result<Step<M, I, R, F>, RecordError> {
        let measured = (budget, None, wanted.clone());
        self.planned_with(measured, (budget, wanted), &mut |_, _| {})
    }

    /// Measures the step for a plan of this kind, within the budget, or what is free where there is none, if it can, and
    /// leaves it plain: plans come [after](Step::plan_again). `progress` is told how many of how many operations are
    /// measured.
    ///
    /// # Errors
    ///
    /// As [`plain`](Self::plain); [`RecordError::Choosing`] if kernels cannot be chosen within the budget.
    pub fn measured(
        self,
        budget: Option<Bytes>,
        free: Option<Bytes>,
        wanted: Wanted,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Step<M, I, R, F>, RecordError> {
        let plain = (None, GraphPlanner::None.into());
        self.planned_with((budget, free, wanted), plain, progress)
    }

    /// Measured within a budget, or what is free, for a plan; then planned for another, perhaps.
    fn planned_with(
        mut self,
        measured: (Option<Bytes>, Option<Bytes>, Wanted),
        planned: (Option<Bytes>, Wanted),
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Step<M, I, R, F>, RecordError> {
        let reducer = self.options.reducer.take();
        let shared = reducer.is_some();
        let step = self.planned_alone(measured, planned, shared, progress);
        match reducer {
            Some(reducer) => Step::shared(step, reducer),
            None => step,
        }
    }

    fn planned_alone(
        self,
        (measured_within, free, measured_for): (Option<Bytes>, Option<Bytes>, Wanted),
        (budget, wanted): (Option<Bytes>, Wanted),
        shared: bool,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Step<M, I, R, F>, RecordError> {
        let device = device_of(self.batch, self.model).ok_or(RecordError::Backend)?;
        let meter = match &self.options.meter {
            Some(meter) => meter.clone(),
            None => own_meter(&device)?,
        };
        let update = self.recorded.0.update;
        let measure = self.options.optimizer;
        let costs = |update, trial| {
            let measure = measure.as_ref();
            measure.map_or_else(UpdateCosts::default, |measure| {
                measure(self.model, update, &*meter, trial)
            })
        };
        let updates = costs(update, Trial::Whole);
        let either = self.options.either.then(|| EitherUpdate {
            after: costs(Update::After, Trial::Parts),
            in_backward: updates.clone(),
        });
        let on_host = meter.read().reserved_bytes.is_none();
        let planning = Planning {
            budget: None,
            free,
            wanted: wanted.clone(),
            slots: PlanRequest::SLOTS,
            elsewhere: self.options.elsewhere,
            link: self.options.link,
            later: self.options.later,
            between: self.options.between,
            shared,
            updated: false,
            without_batch: false,
            count: self.options.count,
            input_gradients: self.options.input_gradients,
            optimizer: updates.together(update, &self.recorded.0),
            update,
            updates,
            either,
            on_host,
            meter,
            device,
            check: self.options.check,
            compare: self.options.compare,
            room: None,
        };
        let measuring = planning.with_budget(measured_within, measured_for);
        let given = given::given(&self.recorded.0, self.model, self.batch)?;
        let measured = MeasuredRecording::new(
            &measuring,
            given,
            self.recorded,
            given::shapes(self.batch),
            self.record_time,
            progress,
        )?;
        let planning = planning.with_budget(budget, wanted);
        let first = planned(&planning, Rc::new(measured))?;
        Ok(Step::new(self.step, planning, first))
    }
}

/// What reads the memory of a device that nobody gave a meter for.
fn own_meter(device: &burn::tensor::Device) -> Result<Arc<dyn Meter>, RecordError> {
    match PoolMeter::of(device) {
        Some(meter) => Ok(Arc::new(meter)),
        None => Ok(Arc::new(HostMeter::new()?)),
    }
}
