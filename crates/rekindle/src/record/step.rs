//! A recorded step with its plans: what runs in the place of `forward` and `backward`.

use std::{
    cell::RefCell,
    collections::HashMap,
    rc::Rc,
    time::{Duration, Instant},
};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::{Bool, DType, Device, DispatchTensor, Int, Shape, Tensor},
};
use burn_ir::TensorId;
use rekindle_plan::{
    Bytes, Seconds,
    graph::{Graph, GraphPlanner, Program, Simulated},
};

use super::{
    IntoBudget, RecordError,
    bridge::{self, Interpreter, StepResult},
    finite,
    planning::{Measured, Planning, planned},
    program::Prepared,
    recording::Recording,
};
use crate::{
    activation::{Activation, ActivationMapper, ActivationVisitor},
    meter::{MemoryReading, Meter},
    quiet,
};

/// Recordings with their plans that are kept, for batches of several shapes.
const KEPT: usize = 8;

/// The first steps are all compared with their recording, so that a number that changes with every step is found.
const COMPARED_AT_FIRST: u64 = 3;

/// Share of the step's time that comparing it with its recording may take.
const COMPARING: f64 = 0.01;

/// A training step that runs inside its budget.
///
/// Made by [`Recorded::within`](super::Recorded::within) and its siblings. It holds no parameter: [`run`](Self::run) is given the model of the
/// moment.
pub struct Step<M, I, R: StepResult, F> {
    step: F,
    planning: Planning,
    state: RefCell<State<R::Auxiliary>>,
    types: std::marker::PhantomData<fn(&M, I)>,
}

struct State<A> {
    /// The most recently used first.
    plans: Vec<Rc<Planned<A>>>,
    steps: u64,
    compare_next: u64,
    /// How often a step differed from its recording though its batch's shapes were equal.
    changed: u64,
}

/// A recording that is ready to run.
pub(super) struct Planned<A> {
    pub(super) measured: Rc<Measured<A>>,
    pub(super) prepared: Vec<Prepared>,
    pub(super) graph: Graph,
    pub(super) program: Program,
    pub(super) simulated: Simulated,
    pub(super) planner: GraphPlanner,
    /// What each operation takes.
    pub(super) needs: Vec<Bytes>,
    /// What is in use beside the step's own tensors when it was planned, without the optimizer's state.
    pub(super) base: Bytes,
    pub(super) optimizer_state: Bytes,
    pub(super) predicted_peak: Bytes,
    pub(super) plain_peak: Bytes,
    pub(super) plain_time: Seconds,
}

impl<A> Planned<A> {
    /// How much more is in use beside the step than when it was planned, the optimizer's state apart.
    fn growth(&self, meter: &dyn Meter) -> Bytes {
        meter.read().in_use_bytes - (self.base + self.optimizer_state)
    }
}

/// What a step leaves.
pub struct Output<A, I> {
    /// The loss, shape `[1]`, without autodiff.
    pub loss: Tensor<1>,
    /// What else the step returned, without autodiff.
    pub auxiliary: A,
    /// Gradients of the parameters, as burn's optimizers take them.
    pub gradients: GradientsParams,
    /// Gradients of the batch's float tensors, where [`with_input_gradients`](super::Recorded::with_input_gradients) asked for them: zeros where
    /// the loss does not depend on one. Integer and boolean tensors are the batch's own.
    pub input_gradients: Option<I>,
    /// Memory at the step's end, and its peak since the step began; the optimizer's update comes later.
    pub memory: MemoryReading,
    /// The peak that the plan predicts, with what is in use now beside the step.
    pub predicted_peak: Bytes,
}

impl<M, I, R, F> Step<M, I, R, F>
where
    M: Module,
    I: Activation,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
    pub(super) fn new(step: F, planning: Planning, first: Planned<R::Auxiliary>) -> Self {
        Self {
            step,
            planning,
            state: RefCell::new(State {
                plans: vec![Rc::new(first)],
                steps: 0,
                compare_next: 1,
                changed: 0,
            }),
            types: std::marker::PhantomData,
        }
    }

    /// Runs the step on a batch: the plan's operations, each as often as the plan says.
    ///
    /// Running statistics of `model` move once. A batch of another shape than before, or a step that would now do
    /// something else than its recording, is recorded and planned on its own first; that is said by
    /// [`recordings`](Self::recordings) and [`log`].
    ///
    /// # Errors
    ///
    /// If the step cannot be recorded or fits no plan, a value is not finite, or the device fails. Then nothing is
    /// handed out, and the model is as it was.
    pub fn run(&self, model: &M, batch: I) -> Result<Output<R::Auxiliary, I>, RecordError> {
        let planned = self.plan_for(model, &batch)?;
        let meter = &*self.planning.meter;
        let predicted_peak = planned.predicted_peak + planned.growth(meter);
        meter.start_interval();
        let started = Instant::now();
        let done = quiet::catch(|| self.interpret(&planned, model, &batch))
            .map_err(RecordError::Device)??;
        let memory = meter.read();
        self.schedule_comparison(&planned, started.elapsed());
        let mut output = done.finish(&planned, model, batch, memory, self.planning.check)?;
        output.predicted_peak = predicted_peak;
        Ok(output)
    }

    /// Plans the step again for another budget, without measuring it again: to look at several.
    ///
    /// # Errors
    ///
    /// As [`within`](super::Recorded::within); then the step is as it was.
    pub fn set_budget(
        &mut self,
        budget: impl IntoBudget,
        planner: GraphPlanner,
    ) -> Result<(), RecordError> {
        let planning = self
            .planning
            .with_budget(Some(budget.into_budget()?), planner);
        let state = self.state.get_mut();
        let measured = state.plans[0].measured.clone();
        let plan = planned(&planning, measured)?;
        state.plans = vec![Rc::new(plan)];
        self.planning = planning;
        Ok(())
    }

    /// How many recordings are kept, and how often a step differed from its recording though its batch had the same
    /// shapes: something else than the batch and the parameters changes what it computes.
    pub fn recordings(&self) -> (usize, u64) {
        let state = self.state.borrow();
        (state.plans.len(), state.changed)
    }

    /// The plan of the last step, or of the first if none ran.
    pub fn plan(&self) -> StepPlan {
        let state = self.state.borrow();
        let planned = &state.plans[0];
        StepPlan {
            planner: planned.planner,
            predicted_peak: planned.predicted_peak,
            predicted_time: planned.simulated.time,
            plain_peak: planned.plain_peak,
            plain_time: planned.plain_time,
            operations: planned.measured.recording.operations.len(),
            repeated: planned.simulated.repeated,
        }
    }

    /// The measured graph and the program of the last step, for looking at and for planning again.
    pub fn graph(&self) -> (Graph, Program) {
        let state = self.state.borrow();
        (state.plans[0].graph.clone(), state.plans[0].program.clone())
    }

    /// The plan for this batch: a kept one, or a new one.
    fn plan_for(&self, model: &M, batch: &I) -> Result<Rc<Planned<R::Auxiliary>>, RecordError> {
        let shapes = shapes(batch);
        let mut state = self.state.borrow_mut();
        state.steps += 1;
        let known = state
            .plans
            .iter()
            .position(|plan| plan.measured.shapes == shapes);
        let place = match known {
            Some(place) if state.steps < state.compare_next => place,
            _ => {
                let started = Instant::now();
                let taken = bridge::take(model, batch, self.planning.input_gradients, &self.step)?;
                let recording = Recording::new(&taken);
                let same = |plan: &Rc<Planned<_>>| {
                    plan.measured.shapes == shapes && plan.measured.recording.hash == recording.hash
                };
                match state.plans.iter().position(same) {
                    Some(place) => place,
                    None => {
                        if known.is_some() {
                            state.changed += 1;
                            log::warn!(
                                "the training step does something else than when it was recorded (a number that changes \
                                 from step to step?): recorded and planned again. Pass such numbers in as tensors of the batch"
                            );
                        } else {
                            log::info!(
                                "a batch of other shapes: the step is recorded and planned for them"
                            );
                        }
                        let given = given(&recording, model, batch)?;
                        let planning = &self.planning;
                        let elapsed = started.elapsed();
                        state.plans.truncate(KEPT - 1);
                        let measured = Measured::new(
                            planning, model, given, taken, recording, shapes, elapsed,
                        )?;
                        let plan = planned(planning, Rc::new(measured))?;
                        state.plans.insert(0, Rc::new(plan));
                        0
                    }
                }
            }
        };
        // The first place is the most recently used.
        state.plans[..=place].rotate_right(1);
        if let Some(more) = self.outgrown(&state.plans[0]) {
            log::info!("{more} more are in use than when the step was planned: planned again");
            // The old plan takes memory itself.
            let measured = state.plans.remove(0).measured.clone();
            state
                .plans
                .insert(0, Rc::new(planned(&self.planning, measured)?));
        }
        Ok(state.plans[0].clone())
    }

    /// How much more is in use beside the step than when it was planned, if that would take its peak past the budget.
    fn outgrown(&self, planned: &Planned<R::Auxiliary>) -> Option<Bytes> {
        let budget = self.planning.budget?;
        let more = planned.growth(&*self.planning.meter);
        (planned.predicted_peak + more > budget).then_some(more)
    }

    /// When the step is to be compared with its recording next.
    fn schedule_comparison(&self, planned: &Planned<R::Auxiliary>, step_time: Duration) {
        let mut state = self.state.borrow_mut();
        let every = if state.changed > 0 || state.steps < COMPARED_AT_FIRST {
            1.0
        } else {
            (planned.measured.record_time.as_secs_f64() / (COMPARING * step_time.as_secs_f64()))
                .ceil()
        };
        state.compare_next = if state.steps < state.compare_next {
            state.compare_next
        } else {
            state.steps + every.clamp(1.0, 1e6) as u64
        };
    }

    fn interpret(
        &self,
        planned: &Planned<R::Auxiliary>,
        model: &M,
        batch: &I,
    ) -> Result<Done, RecordError> {
        let given = given(&planned.measured.recording, model, batch)?;
        let mut interpreter = started(&planned.measured.recording, given)?;
        let mut tensors = HashMap::new();
        let room = self.planning.room();
        for (step, need) in planned.prepared.iter().zip(&planned.needs) {
            if let Some(room) = &room {
                room.make(*need);
            }
            step.run(interpreter.as_mut(), &mut |tensor, value| {
                tensors.insert(tensor, value);
            });
        }
        Ok(Done { tensors })
    }
}

/// An interpreter that holds what is there before the first operation.
pub(super) fn started(
    recording: &Recording,
    given: Vec<(usize, DispatchTensor)>,
) -> Result<Box<dyn Interpreter>, RecordError> {
    let (_, any) = given.first().ok_or(RecordError::Backend)?;
    let mut interpreter = bridge::interpreter(any)?;
    for (tensor, value) in given {
        interpreter.give(TensorId::new(tensor as u64), value);
    }
    for (tensor, data) in &recording.constants {
        interpreter.give_data(TensorId::new(*tensor as u64), data.clone());
    }
    Ok(interpreter)
}

/// The tensors of a model and a batch, by their numbers in a recording.
pub(super) fn given<M: Module, I: Activation>(
    recording: &Recording,
    model: &M,
    batch: &I,
) -> Result<Vec<(usize, DispatchTensor)>, RecordError> {
    let wanted = recording.parameters.iter().map(|one| (one.id, one.tensor));
    let mut parameters = Parameters {
        wanted: wanted.collect(),
        found: Vec::with_capacity(recording.parameters.len()),
    };
    // Takes in pending updates of running statistics.
    model.valid().visit(&mut parameters);
    if let Some((_, missing)) = parameters.wanted.iter().next() {
        let parameter = recording
            .parameters
            .iter()
            .find(|one| one.tensor == *missing);
        return Err(RecordError::Parameter {
            path: parameter.map(|one| one.path.clone()).unwrap_or_default(),
        });
    }
    let mut tensors = Tensors(Vec::new());
    batch.visit(&mut tensors);
    let mut given = parameters.found;
    given.extend(recording.inputs.iter().copied().zip(tensors.0));
    Ok(given)
}

/// Finds a model's tensors.
struct Parameters {
    wanted: HashMap<ParamId, usize>,
    found: Vec<(usize, DispatchTensor)>,
}

impl Parameters {
    fn found(&mut self, id: ParamId, tensor: impl FnOnce() -> DispatchTensor) {
        if let Some(number) = self.wanted.remove(&id) {
            self.found.push((number, tensor()));
        }
    }
}

impl ModuleVisitor for Parameters {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.found(param.id, || param.val().into_dispatch());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.found(param.id, || param.val().into_dispatch());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.found(param.id, || param.val().into_dispatch());
    }
}

/// A batch's tensors without autodiff.
struct Tensors(Vec<DispatchTensor>);

impl ActivationVisitor for Tensors {
    fn float<const D: usize>(&mut self, tensor: &Tensor<D>) {
        self.0
            .push(tensor.clone().without_autodiff().into_dispatch());
    }

    fn int<const D: usize>(&mut self, tensor: &Tensor<D, Int>) {
        self.0
            .push(tensor.clone().without_autodiff().into_dispatch());
    }

    fn bool<const D: usize>(&mut self, tensor: &Tensor<D, Bool>) {
        self.0
            .push(tensor.clone().without_autodiff().into_dispatch());
    }
}

/// Shapes and types of a batch's tensors.
pub(super) fn shapes<I: Activation>(batch: &I) -> Vec<(Shape, DType)> {
    struct Shapes(Vec<(Shape, DType)>);
    impl ActivationVisitor for Shapes {
        fn float<const D: usize>(&mut self, tensor: &Tensor<D>) {
            self.0.push((tensor.shape(), tensor.dtype()));
        }
        fn int<const D: usize>(&mut self, tensor: &Tensor<D, Int>) {
            self.0.push((tensor.shape(), tensor.dtype()));
        }
        fn bool<const D: usize>(&mut self, tensor: &Tensor<D, Bool>) {
            self.0.push((tensor.shape(), tensor.dtype()));
        }
    }
    let mut shapes = Shapes(Vec::new());
    batch.visit(&mut shapes);
    shapes.0
}

/// Where a batch or a model is.
pub(super) fn device_of<M: Module, I: Activation>(model: &M, batch: &I) -> Option<Device> {
    crate::executor::machine::device_of(batch, model)
}

/// What a program left.
struct Done {
    tensors: HashMap<usize, DispatchTensor>,
}

impl Done {
    fn finish<M: Module, A: Activation, I: Activation>(
        mut self,
        planned: &Planned<A>,
        model: &M,
        batch: I,
        memory: MemoryReading,
        check: bool,
    ) -> Result<Output<A, I>, RecordError> {
        let recording = &planned.measured.recording;
        let loss = self
            .tensor(recording.loss, &[])
            .ok_or(RecordError::LossElsewhere)?;
        let loss = Tensor::<1>::from_dispatch(loss);
        let gradients: Vec<(usize, DispatchTensor)> = recording
            .parameters
            .iter()
            .enumerate()
            .filter_map(|(place, parameter)| {
                let gradient = self.tensors.get(&parameter.gradient?)?.clone();
                Some((place, gradient))
            })
            .collect();
        if check {
            finite::check(&loss, &gradients, |place| {
                recording.parameters[place].path.clone()
            })?;
        }
        let mut registered = GradientsParams::new();
        for (place, gradient) in gradients {
            register(&mut registered, recording.parameters[place].id, gradient);
        }
        // What is returned may be what was there before: the batch's, or a parameter.
        let given = match recording.auxiliary.is_empty() {
            true => Vec::new(),
            false => given(recording, model, &batch)?,
        };
        let auxiliary = recording
            .auxiliary
            .iter()
            .map(|&tensor| self.tensor(tensor, &given));
        let auxiliary: Option<Vec<DispatchTensor>> = auxiliary.collect();
        let mut values = Values(auxiliary.ok_or(RecordError::LossElsewhere)?.into_iter());
        let auxiliary = planned.measured.auxiliary.clone().map(&mut values);
        if !recording.statistics.is_empty() {
            let moved = recording.statistics.iter();
            let moved = moved.filter_map(|(id, tensor)| Some((*id, self.tensors.remove(tensor)?)));
            drop(model.clone().map(&mut Put(moved.collect())));
        }
        let input_gradients = (!recording.input_gradients.is_empty()).then(|| {
            let gradients = recording.input_gradients.iter();
            let gradients: Vec<Option<DispatchTensor>> = gradients
                .map(|gradient| self.tensors.get(&(*gradient)?).cloned())
                .collect();
            batch.map(&mut InputGradients(gradients.into_iter()))
        });
        Ok(Output {
            loss,
            auxiliary,
            gradients: registered,
            input_gradients,
            memory,
            predicted_peak: planned.predicted_peak,
        })
    }

    /// A tensor that the program made, or that was there before it.
    fn tensor(&self, tensor: usize, given: &[(usize, DispatchTensor)]) -> Option<DispatchTensor> {
        let made = self.tensors.get(&tensor).cloned();
        made.or_else(|| {
            let given = given.iter().find(|(number, _)| *number == tensor)?;
            Some(given.1.clone())
        })
    }
}

/// Registers a gradient of any rank.
fn register(gradients: &mut GradientsParams, id: ParamId, gradient: DispatchTensor) {
    macro_rules! of_rank {
        ($($rank:literal),*) => {
            match burn_backend::TensorMetadata::rank(&gradient) {
                $($rank => gradients.register::<$rank>(id, Tensor::from_dispatch(gradient)),)*
                rank => panic!("a parameter of rank {rank}"),
            }
        };
    }
    of_rank!(1, 2, 3, 4, 5, 6, 7, 8);
}

/// Puts values into a template, in order.
struct Values(std::vec::IntoIter<DispatchTensor>);

impl Values {
    fn next(&mut self) -> DispatchTensor {
        match self.0.next() {
            Some(tensor) => tensor,
            None => panic!("an activation whose `visit` and `map` name different tensors"),
        }
    }
}

impl ActivationMapper for Values {
    fn float<const D: usize>(&mut self, _tensor: Tensor<D>) -> Tensor<D> {
        Tensor::from_dispatch(self.next())
    }

    fn int<const D: usize>(&mut self, _tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        Tensor::from_dispatch(self.next())
    }

    fn bool<const D: usize>(&mut self, _tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        Tensor::from_dispatch(self.next())
    }
}

/// Puts gradients in the place of a batch's float tensors.
struct InputGradients(std::vec::IntoIter<Option<DispatchTensor>>);

impl ActivationMapper for InputGradients {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        match self.0.next().flatten() {
            Some(gradient) => Tensor::from_dispatch(gradient),
            None => tensor.without_autodiff().zeros_like(),
        }
    }
}

/// Puts new values into a model's running statistics, which clones share.
struct Put(HashMap<ParamId, DispatchTensor>);

impl ModuleMapper for Put {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(value) = self.0.get(&param.id) else {
            return param;
        };
        let value = Tensor::<D>::from_dispatch(value.clone());
        let (id, old, mapper) = param.consume();
        let value = match old.gradient_checkpointing_strategy() {
            Some(strategy) => value
                .autodiff()
                .with_gradient_checkpointing_strategy(strategy),
            None => value,
        };
        Param::from_mapped_value(id, value, mapper)
    }
}

/// A plan in numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepPlan {
    /// Which planner found it.
    pub planner: GraphPlanner,
    /// Most bytes in use while the step runs and while the optimizer updates, all that the process holds included.
    pub predicted_peak: Bytes,
    /// Time of the step without the optimizer's update.
    pub predicted_time: Seconds,
    /// The same of the plain run.
    pub plain_peak: Bytes,
    /// The same of the plain run.
    pub plain_time: Seconds,
    /// Operations of the recorded step.
    pub operations: usize,
    /// Operations that run again.
    pub repeated: usize,
}
