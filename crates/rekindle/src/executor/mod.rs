//! Runs a schedule: the only place that calls `backward`.
//!
//! One training step is the schedule's actions in order. Untracked forwards keep only the activations that the schedule
//! keeps. Tracked forwards record burn's graph. A backward pass starts from the gradient of a piece's output and gives
//! the gradient of its input, which is the upstream gradient of the previous piece. The executor runs the pieces one by
//! one, the last one first: a backward pass nested inside another would need fresh leaves, which cost more.
//!
//! # Guarantees
//!
//! Loss, gradients and running statistics are those of the plain run under the same [`StepSeed`], under any schedule;
//! on the CPU backend bit for bit. The only additional arithmetic is the sum of gradients of a parameter that is used
//! in two pieces.
//!
//! # Frozen stages
//!
//! If the first stages have nothing to train, they need no gradients: their backward passes, and all work that only
//! these need, are left out of the step ([`Schedule::without_frozen`]). A frozen stage above one that trains passes
//! gradients on, and runs as scheduled.
//!
//! # Threads
//!
//! Several threads may run steps at once, each with its own model: a stage that draws waits while a stage of another
//! thread draws ([`seed`](crate::seed)). During these steps, no thread may draw outside of stages.
//!
//! # Limitations
//!
//! It has no notion of segments (that is the schedule's), it does not update parameters, and it does not look inside
//! layers: a layer that gives another output when it runs again (unseeded random numbers, state of its own) breaks
//! the promise.
//!
//! # Map
//!
//! | file | what it owns |
//! |---|---|
//! | `program.rs` | a schedule made ready to run |
//! | `machine.rs` | runs it: a stage is recomputed, and its backward runs, here |
//! | `copies.rs` | detached copies of layers, and which of them runs |
//! | `shapes.rs`, `watch.rs` | checks of shapes; readings between actions |
//! | `output.rs`, `error.rs` | what a step gives; the error texts |

pub(crate) mod copies;
mod error;
pub(crate) mod machine;
mod output;
mod program;
mod shapes;
mod watch;

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Mutex, PoisonError},
};

use rekindle_plan::{Action, Schedule, planner};

use crate::{
    device_errors, graph,
    layer::Layer,
    meter::{Meter, halves},
    quiet,
    seed::{StepSeed, would_interrupt},
    sequential::Sequential,
    step_result::StepResult,
    tensor_tree::{TensorTree, device_of},
};
pub(crate) use copies::ModuleTensors;
use machine::{Layers, Machine};
pub(crate) use program::{ModuleProgram, OutputBorder};
use shapes::{FirstShapes, Shapes, shapes};
use watch::Watch;

pub use error::{CheckpointError, StepError};
pub use output::StepOutput;
pub use watch::TraceEntry;

/// Runs training steps of one chain under one schedule.
pub struct Executor {
    schedule: Schedule,
    /// The script of the last step; at first, the one for a model without frozen stages.
    script: Mutex<Arc<Script>>,
    meter: Option<Arc<dyn Meter>>,
    traced: bool,
    /// Shapes of the input that the schedule was planned for.
    planned: Option<Shapes>,
}

/// A schedule's actions, without those that only frozen stages need, and the program that runs them.
struct Script {
    frozen: usize,
    actions: Arc<[Action]>,
    program: ModuleProgram,
}

impl Script {
    fn new(schedule: &Schedule, frozen: usize) -> Self {
        let actions = schedule.without_frozen(frozen);
        Self {
            frozen,
            program: ModuleProgram::of(&actions, schedule.stages()),
            actions: actions.into(),
        }
    }
}

impl Executor {
    /// An executor for this schedule.
    #[must_use]
    pub fn new(schedule: Schedule) -> Self {
        let script = Mutex::new(Arc::new(Script::new(&schedule, 0)));
        Self {
            schedule,
            script,
            meter: None,
            traced: false,
            planned: None,
        }
    }

    /// Rejects inputs that are larger in any dimension than `input`, for which the schedule was planned: they might
    /// need more memory than planned, and a budget is never exceeded silently. Smaller inputs, such as an epoch's last
    /// batch, are accepted.
    #[must_use]
    pub fn planned_for<A: TensorTree>(mut self, input: &A) -> Self {
        self.planned = Some(shapes::<A>(input));
        self
    }

    /// Records memory and time of each phase with this meter.
    #[must_use]
    pub fn with_meter(mut self, meter: Arc<dyn Meter>) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Records memory after every action of the schedule that runs: not `optimize`, which is the caller's, nor actions
    /// that only frozen stages need. Each action takes a reading, so steps take longer. Without a meter this has no
    /// effect.
    #[must_use]
    pub fn traced(mut self) -> Self {
        self.traced = true;
        self
    }

    /// The schedule.
    #[must_use]
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Runs one training step: forward, loss, backward.
    ///
    /// `loss` receives the chain's output and returns the loss of shape `[1]`, alone or in a pair with auxiliary output
    /// (see [`StepResult`]). It may use the model's parameters, for example for a penalty on them. Other tensors that
    /// require a gradient get none. It must not draw random numbers.
    ///
    /// # Errors
    ///
    /// A [`StepError`] if the schedule does not fit the model, before anything runs, or if the loss is not a scalar.
    pub fn step<L, A, R, F>(
        &self,
        model: &Sequential<L>,
        input: A,
        seed: StepSeed,
        loss: F,
    ) -> Result<StepOutput<R::Auxiliary>, StepError>
    where
        A: TensorTree,
        L: Layer<Input = A, Output = A>,
        R: StepResult,
        F: FnOnce(A) -> R,
    {
        if would_interrupt() {
            return Err(StepError::Interrupts);
        }
        self.check(model.layers())?;
        self.check_input::<A>(&input)?;
        let tensors: Vec<ModuleTensors> =
            model.layers().iter().map(ModuleTensors::of::<L>).collect();
        let frozen = tensors.iter().take_while(|tensors| !tensors.trains).count();
        let script = self.script(frozen);
        let (phases, watch) = match &self.meter {
            Some(meter) if self.traced => {
                let [phases, trace] = halves(meter);
                let phases: Arc<dyn Meter> = Arc::new(phases);
                let watch = Watch::start(Arc::clone(&script.actions), Arc::new(trace));
                (Some(phases), Some(watch))
            }
            meter => (meter.clone(), None),
        };
        let phases = phases.as_deref();
        let shapes = FirstShapes::new(model.len());
        let layers = Layers {
            all: model.layers(),
            tensors,
            frozen,
        };
        let device = model.layers().first();
        let device = device.and_then(|layer| device_of(&input, layer));
        let machine = Machine::new(layers, input, seed, phases, watch, shapes);
        let run = AssertUnwindSafe(|| machine.run(&script.program, loss));
        let done = catch_unwind(run);
        if !matches!(done, Ok(Ok(_)))
            && let Some(device) = &device
        {
            // Free what the step kept for its backward pass. A device that failed may also fail here.
            let _ = quiet::catch(|| graph::clear(model, device));
        }
        let done = done.unwrap_or_else(|panic| resume_unwind(panic))?;
        match device.and_then(|device| device_errors::settled(&device)) {
            Some(refusal) => Err(StepError::Refused { refusal }),
            None => Ok(done),
        }
    }

    /// The script of a step whose first `frozen` stages have nothing to train; usually the last step's.
    fn script(&self, frozen: usize) -> Arc<Script> {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        if script.frozen != frozen {
            *script = Arc::new(Script::new(&self.schedule, frozen));
        }
        Arc::clone(&script)
    }

    fn check_input<A: TensorTree>(&self, input: &A) -> Result<(), StepError> {
        let Some(planned) = &self.planned else {
            return Ok(());
        };
        let got = shapes::<A>(input);
        let fits = |(planned, got): (&Vec<usize>, &Vec<usize>)| {
            planned.len() == got.len() && planned.iter().zip(got).all(|(most, size)| size <= most)
        };
        if planned.len() == got.len() && planned.iter().zip(&got).all(fits) {
            return Ok(());
        }
        Err(StepError::LargerInput {
            planned: planned.clone(),
            got,
        })
    }

    fn check<L: Layer>(&self, layers: &[L]) -> Result<(), StepError> {
        if self.schedule.stages() != layers.len() {
            return Err(StepError::LayerCount {
                schedule: self.schedule.stages(),
                layers: layers.len(),
            });
        }
        for action in self.schedule.actions() {
            if let Action::ForwardTracked { stage, alternative } = *action
                && alternative > usize::from(layers[stage.0].has_balanced())
            {
                return Err(StepError::Alternative {
                    stage: stage.0,
                    alternative,
                    has_balanced: layers[stage.0].has_balanced(),
                });
            }
        }
        Ok(())
    }
}

/// Forward, loss and backward pass with `segments` checkpointed segments, modelled on PyTorch's
/// `checkpoint_sequential(functions, segments, input)`.
///
/// PyTorch returns the output and recomputes when the caller runs `backward`. Here the loss is passed as a closure, and
/// the gradients are returned with it. Random layers draw from the generator that
/// [`Device::seed`](burn::tensor::Device::seed) seeds.
///
/// # Errors
///
/// If `segments` is 0 or larger than the number of layers, or if the loss is not a scalar.
pub fn checkpoint_sequential<L, A, R, F>(
    model: &Sequential<L>,
    segments: usize,
    input: A,
    loss: F,
) -> Result<StepOutput<R::Auxiliary>, CheckpointError>
where
    A: TensorTree,
    L: Layer<Input = A, Output = A>,
    R: StepResult,
    F: FnOnce(A) -> R,
{
    let schedule = planner::uniform(model.len(), segments)?;
    let random = model.layers().iter().find(|layer| layer.draws_random());
    let seed = match random.and_then(|layer| device_of(&input, layer)) {
        Some(device) => StepSeed::draw(&device),
        None => StepSeed::new(0, 0),
    };
    Ok(Executor::new(schedule).step(model, input, seed, loss)?)
}
