//! [`Recorded`]: options of a step that is recorded, and its first plan.

use std::{
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use burn::module::Module;
use rekindle_plan::{Bytes, Planner, Seconds};

use super::{
    Comparison, Link, Optimizer, RecordError, Step, Update, autodiff_time, bridge,
    cost::Known,
    given,
    leaf::free_dead_nodes,
    measured::MeasuredRecording,
    optimizer,
    optimizer_state::{OptimizerState, StateChoice},
    options::{Now, Options, Planning, Wanted, Way},
    places::Place,
    planned::planned,
    recording::Recording,
    room::Room,
    update::Updates,
    update_costs::UpdateCosts,
};
use crate::{
    meter::{Count, HostMeter, Meter, PoolMeter},
    reduce::{Reducer, shards::Shards},
    size::{Budget, Size},
    step_result::StepResult,
    tensor_tree::{TensorTree, device_of},
};

/// Records one training step: all that `step` computes from the model and the batch, and burn's backward pass of the
/// returned loss. Nothing is computed while recording.
///
/// `step` returns the loss, a tensor of one element, or a pair of the loss and an auxiliary output, for example
/// `(loss, logits)`. Batch and auxiliary output may be any [`TensorTree`]: a tensor, a tuple of tensors, a struct of your
/// own. See [the module's page](mod@crate::record) for what a step may do, and when it is called.
///
/// # Errors
///
/// If the step cannot be recorded: the [`RecordError`] says what to change.
pub fn record<'a, M, I, R, F>(
    model: &'a M,
    batch: &'a I,
    step: F,
) -> Result<Recorded<'a, M, I, R, F>, RecordError>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
    let recorded = bridge::take(model, &Place::of(model), batch, &step, Update::After)?;
    Ok(Recorded {
        model,
        batch,
        step,
        recorded,
        options: Options::default(),
        optimizer: None,
        meter: None,
        reducer: None,
    })
}

/// A recorded step that is not planned yet.
pub struct Recorded<'a, M, I, R: StepResult, F> {
    pub(super) model: &'a M,
    pub(super) batch: &'a I,
    pub(super) step: F,
    /// With the auxiliary output on the recording device.
    pub(super) recorded: (Recording, R::Auxiliary),
    pub(super) options: Options,
    optimizer: Option<MeasureOptimizer<M>>,
    meter: Option<Arc<dyn Meter>>,
    reducer: Option<Reducer>,
}

/// Measures an optimizer on a model.
type MeasureOptimizer<M> = Box<dyn Fn(&M, Update, &dyn Meter) -> UpdateCosts>;

impl<M, I, R, F> Recorded<'_, M, I, R, F>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
    /// Counts this optimizer's update and its state, which the first update creates. A state that the optimizer already
    /// has is in use and not counted again. Without this, a budget bounds only the step.
    #[must_use]
    pub fn with_optimizer<O: Optimizer>(self, optimizer: &O) -> Self {
        self.with_updates(optimizer, Updates::One(Update::After))
    }

    /// Like [`with_optimizer`](Self::with_optimizer), with any of these updates in a plan, which
    /// [says](super::PlanSummary::update) which. The optimizer is measured for each, with only a part of each large
    /// parameter, so that measuring stays within a budget that the gradients alone would exceed.
    #[doc(hidden)]
    #[must_use]
    pub fn with_updates<O: Optimizer>(mut self, optimizer: &O, updates: Updates) -> Self {
        self.options.updates = updates;
        let with_state = optimizer::with_state(self.model, optimizer);
        let optimizer = optimizer.for_trial();
        self.optimizer = Some(Box::new(move |model, update, meter| {
            optimizer::measured(model, (&optimizer, &with_state), update, meter)
        }));
        self
    }

    /// Like [`with_optimizer`](Self::with_optimizer), but for [`Step::run_updating`]: each parameter is updated in the
    /// backward pass as soon as its gradient is complete and no remaining operation reads its old value; then the
    /// gradient is freed. Plans take this into account: gradients are not kept until the end of the backward pass.
    ///
    /// ```no_run
    /// # use burn::{nn::{Linear, LinearConfig}, optim::SgdConfig, prelude::*};
    /// # use rekindle::record::RecordError;
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
    /// This excludes everything that needs all gradients at once: accumulation over parts of a batch, clipping by the
    /// global norm, or abandoning a step after the backward pass. See [`Step::run_updating`] for steps that fail.
    #[must_use]
    pub fn with_update_in_backward<O: Optimizer>(self, optimizer: &O) -> Self {
        self.with_updates(optimizer, Updates::One(Update::InBackward))
    }

    /// Reads memory with this meter. The default is the process's allocator on the CPU backend, and the pools on GPUs.
    #[must_use]
    pub fn with_meter(mut self, meter: Arc<dyn Meter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Whether [`Step::run`] reads one number that depends on the loss and every gradient before it returns anything
    /// (the default). This detects values that are not finite, and a device that ran out of memory.
    #[must_use]
    pub fn with_finite_check(mut self, on: bool) -> Self {
        self.options.check = on;
        self
    }

    /// How often the step is compared with its recording. A comparison records it again, which takes memory on the host; the
    /// budget of a step on the CPU counts it.
    #[must_use]
    pub fn with_comparison(mut self, how: Comparison) -> Self {
        self.options.comparison = how;
        self
    }

    /// Which bytes the budget bounds on a GPU: reserved device memory (the default), or live buffers.
    #[must_use]
    pub fn with_count(mut self, count: Count) -> Self {
        self.options.count = count;
        self
    }

    /// Allows plans to offload tensors to host memory between forward and backward pass, over a link measured by
    /// [`measured_link`](super::measured_link), if that is faster than recomputing them or nothing else fits; and between
    /// updates the state of an optimizer that [can move it](Optimizer::movable_tensors). The host
    /// copies do not count towards the budget, which bounds the device; [`Link::host_bytes`] bounds them.
    #[must_use]
    pub fn with_link(mut self, link: Option<Link>) -> Self {
        self.options.link = link;
        self
    }

    /// Counts bytes that will be held while the step runs but are not allocated when it is planned.
    #[must_use]
    pub fn with_held(mut self, bytes: Bytes) -> Self {
        self.options.later = bytes;
        self
    }

    /// Allows [`Step::run_parts`] with up to `parts` [parts of a batch](crate::accumulate); the step is recorded on one of
    /// them. From 2 on, plans count what is held between parts: the sum of gradients, in `f32`, and auxiliary outputs.
    #[must_use]
    pub fn with_parts(mut self, parts: usize) -> Self {
        self.options.parts = parts;
        self
    }

    /// Shares the step with other [ranks](crate::reduce), each of which runs it on its part of the batch: loss and
    /// gradients are those of the whole batch, if the loss is a mean over samples. [`Step::set_share`] sets this rank's
    /// share of the samples, if shares are not equal.
    ///
    /// All ranks record, plan and run their steps together, each within its own budget, starting with [equal
    /// parameters](crate::reduce::broadcast_parameters). While the backward pass runs, complete gradients are summed in
    /// buckets; on the CPU backend a plan counts their memory. Each rank's optimizer then makes the same update, or a
    /// [`Sharded`](crate::Sharded) one the update of its part of the parameters. A step that fails on one rank fails on
    /// all, and the next one can succeed. Auxiliary output and running statistics (except those of
    /// [`synchronised_batch_norm`](crate::synchronised_batch_norm)) are local to the rank.
    ///
    /// Before the first step the ranks measure their link, by a few all-reduces of two sizes, and each rank the time to
    /// copy gradients to their buckets and back. The [predicted time](super::PlanSummary::predicted_time) includes the
    /// [time that the exchange adds](super::PlanSummary::exchange), overlapped with the rest of the backward pass and
    /// assuming that all ranks are as fast as this one, with means over ranks and the parameters that a sharded
    /// optimizer sends. [`Output::exchange`](super::Output::exchange) is the measured time.
    #[must_use]
    pub fn with_reducer(mut self, reducer: Reducer) -> Self {
        self.reducer = Some(reducer);
        self
    }

    /// Finds the fastest plan whose peak is within `budget`: a size such as `"2GiB"`, [`Bytes`], or a percentage such
    /// as `"60%"` of the plain step's predicted peak.
    ///
    /// On the CPU backend the peak counts all memory of the process; on GPUs it counts the pools' reserved bytes and
    /// the driver's context. Planning measures the step's operations a few times, on the recorded model and batch,
    /// within the budget. It does not change parameters, running statistics or the random number generator.
    ///
    /// A percentage refers to [`PlanSummary::plain_peak`](super::PlanSummary::plain_peak), which counts the same memory as
    /// the budget: parameters, optimizer and everything else that the process holds. It is converted to bytes with this
    /// batch, and these bytes also apply to batches of other shapes. Plans leave 1% of their budget free, so `"100%"`
    /// is a little less than the plain step needs. Until the bytes are known, the step is measured in the order with
    /// the smallest peak.
    ///
    /// On a GPU, cubecl tries kernels on additional buffers when an operation of some shape first runs. While the step is
    /// measured, and in the first step of a plan, these may exceed the budget for a moment.
    ///
    /// # Errors
    ///
    /// If no plan fits (the error contains the smallest budget for which one exists), memory cannot be measured, or
    /// recordings cannot run on the model's backend. What was measured is lost then: to try budgets without measuring again,
    /// begin with [`plain`](Self::plain).
    pub fn within(self, budget: impl Budget) -> Result<Step<M, I, R, F>, RecordError> {
        let budget = budget.size()?;
        let (bytes, free, planner) = match budget {
            Size::Bytes(bytes) => (Some(bytes), None, Planner::Auto),
            // With no free memory, the order with the smallest peak is measured.
            Size::Percent(_) | Size::OfDevice(_) => (None, Some(Bytes::ZERO), Planner::None),
        };
        let step = self.measured(bytes, free, planner.into(), &mut |_, _| {})?;
        // Of a known whole, a percentage is some bytes.
        let bytes = budget.of(Some(step.plan().plain_peak), None)?;
        step.planned_first(Some(bytes), Planner::Auto)
    }

    /// The plain step, without recomputing, run by the same interpreter.
    ///
    /// Its peak, returned by [`Step::plan`], helps to choose a budget; [`Step::set_budget`] plans for one without
    /// measuring again.
    ///
    /// ```no_run
    /// # use burn::{nn::{Linear, LinearConfig}, prelude::*};
    /// # use rekindle::{plan::Planner, record::RecordError};
    /// # let device = Device::flex().autodiff();
    /// # let model = LinearConfig::new(4, 4).init(&device);
    /// # let batch = Tensor::<2>::ones([2, 4], &device);
    /// # let loss = |layer: &Linear, input: Tensor<2>| layer.forward(input).square().mean();
    /// let mut step = rekindle::record(&model, &batch, loss)?.plain()?;
    /// println!("the plain step takes {}", step.plan().plain_peak);
    /// step.set_budget("1GiB", Planner::Auto)?;
    /// # Ok::<(), RecordError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// See [`within`](Self::within), except errors about budgets.
    pub fn plain(self) -> Result<Step<M, I, R, F>, RecordError> {
        self.measured(None, None, Planner::None.into(), &mut |_, _| {})
    }

    /// Cuts the stages into `segments` segments, where the peak is smallest. Like with PyTorch's `checkpoint_sequential`, the
    /// last one is not recomputed.
    ///
    /// Stages are divided between the layers of a [`Sequential`](crate::Sequential), or where few bytes cross the
    /// recorded forward pass.
    ///
    /// # Errors
    ///
    /// See [`within`](Self::within), except errors about budgets.
    pub fn segments(self, segments: usize) -> Result<Step<M, I, R, F>, RecordError> {
        let planner = Planner::Segments(Some(segments));
        let step = self.measured(None, None, planner.into(), &mut |_, _| {})?;
        step.planned_first(None, planner)
    }

    /// The time that comparing the step with its recording takes, up to its loss.
    ///
    /// # Errors
    ///
    /// See [`record`].
    #[doc(hidden)]
    pub fn comparison(&self) -> Result<Duration, RecordError> {
        let started = Instant::now();
        let places = Place::of(self.model);
        bridge::look(self.model, &places, self.batch, &self.step)?;
        Ok(started.elapsed())
    }

    /// Measures the step for a plan of this kind, within the budget or the free memory if possible, and leaves the step
    /// plain: [plan](Step::plan_anew) it afterwards. `progress` receives the numbers of measured operations and of all
    /// operations.
    ///
    /// # Errors
    ///
    /// See [`plain`](Self::plain); [`RecordError::Choosing`] if kernels cannot be chosen within the budget.
    #[doc(hidden)]
    pub fn measured(
        self,
        budget: Option<Bytes>,
        free: Option<Bytes>,
        wanted: Wanted,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Step<M, I, R, F>, RecordError> {
        let reducer = self.reducer.clone();
        let step = self.measured_alone(budget, free, wanted, progress);
        match reducer {
            Some(reducer) => Step::shared(step, reducer),
            None => step,
        }
    }

    fn measured_alone(
        mut self,
        budget: Option<Bytes>,
        free: Option<Bytes>,
        wanted: Wanted,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Step<M, I, R, F>, RecordError> {
        self.recorded.0.check_trains()?;
        let device = device_of(self.batch, self.model).ok_or(RecordError::Backend)?;
        let meter: Arc<dyn Meter> = if let Some(meter) = self.meter.take() {
            meter
        } else if let Some(meter) = PoolMeter::of(&device) {
            Arc::new(meter)
        } else {
            Arc::new(HostMeter::new()?)
        };
        let allowed = self.options.updates.each();
        let either = [Update::After, Update::InBackward].map(|update| match &self.optimizer {
            Some(measure) if allowed.contains(&update) => measure(self.model, update, &*meter),
            _ => UpdateCosts::default(),
        });
        // The last one's program has every operation.
        let update = allowed.last().copied().unwrap_or_default();
        let divided = either[update as usize].shards.clone();
        self.recorded.0.update = update;
        let on_host = meter.read().reserved_bytes.is_none();
        let (comparison_times, comparison_bytes) = if self.options.comparison == Comparison::Never {
            ([Duration::ZERO; 2], Bytes::ZERO)
        } else {
            free_dead_nodes(&device);
            let host = on_host.then_some(&*meter);
            host.inspect(|meter| meter.start_interval());
            let before = host.map(|meter| meter.read().in_use_bytes);
            let started = Instant::now();
            let places = Place::of(self.model);
            let again = bridge::take(self.model, &places, self.batch, &self.step, update)?;
            drop(again);
            let whole = started.elapsed();
            let peak = host.map(|meter| meter.read().peak_in_use_bytes);
            let bytes = peak.unwrap_or_default() - before.unwrap_or_default();
            ([self.comparison()?, whole], bytes)
        };
        let model = self.model;
        let mut state = OptimizerState::Whole;
        if divided.is_some() {
            // It stays so.
            self.options.program.state = StateChoice::Sharded;
            state = OptimizerState::Sharded;
        }
        let mut planning = Planning {
            budget: None,
            free,
            wanted: Planner::None.into(),
            options: self.options,
            shards: self
                .reducer
                .map(|reducer| divided.unwrap_or_else(|| Shards::of(model, reducer))),
            until_now: Bytes::ZERO,
            beyond: None,
            way: Way {
                update,
                state,
                ..Way::default()
            },
            either,
            on_host,
            room: Arc::new(Room::new(meter.clone(), Bytes::MAX)),
            meter,
            autodiff_time: match on_host {
                true => autodiff_time::per_operation(&device),
                false => Seconds(0.0),
            },
            comparison_times,
            device,
        };
        // A smaller budget is refused. To find the leanest program would take long, and its list alone may take more.
        let open = budget.filter(|budget| *budget >= planning.peak_until_now());
        planning.beyond = (open != budget).then(|| planning.peak_until_now());
        let measuring = planning.with_budget(open, wanted);
        let given = given::given(&self.recorded.0, model, self.batch);
        let shapes = given::shapes(self.batch);
        let measured = MeasuredRecording::new(self.recorded, shapes, comparison_bytes, &measuring);
        let measured = measured.measured(&measuring, given, &Known::default(), progress)?;
        let first = planned(&planning, Now::default(), Rc::new(measured))?;
        Ok(Step::new(self.step, planning, first))
    }
}
