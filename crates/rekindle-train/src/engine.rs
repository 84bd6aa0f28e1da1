//! What runs a training's steps: the recorded step, or the executor of modules.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use super::{
    loss::{Correct, TargetTensor},
    optimizer::AnyOptimizer,
    timeline::Timeline,
    tracker::Tracker,
    train_error::TrainError,
    update::UpdateRefused,
};
use crate::model::{stage::Stage, value::Value};
use burn::{
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use rekindle::{
    executor::{ActionHook, Executor, Room, TraceEntry, Tracing, needed, needed_by_update},
    meter::{Meter, PhaseReading},
    quiet,
    record::{ExchangeReading, Output, RecordError, Step, Update, action},
    seed::StepSeed,
    sequential::Sequential,
};
use rekindle_plan::{
    Action, Bytes, Chain, Schedule, StageId, Violation,
    graph::{GraphPlanner, Span},
    planner,
};

/// A batch, or a part of one, as a step takes it: the scale of its loss is last, where there is one.
pub(super) type StepBatch = (Value, TargetTensor, Option<Tensor<1>>);

/// The loss of a part of a batch, and what is counted beside it.
type LossOfPart = Box<dyn Fn(&Sequential<Stage>, StepBatch) -> (Tensor<1>, Correct)>;

/// A recorded step of a model that is built from a description.
pub(super) type RecordedStep = Step<Sequential<Stage>, StepBatch, (Tensor<1>, Correct), LossOfPart>;

/// Forward and loss of one of `parts` equal parts of a batch.
pub(super) fn loss_of_part(parts: usize) -> LossOfPart {
    Box::new(move |model, (input, targets, scale)| {
        loss(model.forward(input), &targets, scale, parts)
    })
}

/// Runs a recorded step; `run` is told of every span that is done where it watches the step.
fn run_recorded(
    step: &RefCell<RecordedStep>,
    tracker: Option<&Tracker>,
    seed: StepSeed,
    device: &Device,
    run: impl FnOnce(
        &RecordedStep,
        &mut dyn FnMut(&Span),
    ) -> Result<Output<Correct, StepBatch>, RecordError>,
) -> Result<Part, TrainError> {
    device.seed(seed.before());
    let mut actions = Vec::new();
    let output = run(&step.borrow(), &mut |span| {
        if let Some(tracker) = tracker {
            tracker.done(action(span));
        }
        actions.push(action(span));
    })?;
    device.seed(seed.after());
    let spans = actions.into_iter().zip(output.spans).enumerate();
    let trace = spans.map(|(index, (action, span))| TraceEntry {
        action,
        index,
        in_use_bytes: span.memory.in_use_bytes,
        peak_bytes: span.memory.peak_in_use_bytes,
        reserved_bytes: span.memory.reserved_bytes,
        done_at: span.done_at,
    });
    Ok(Part {
        loss: output.loss,
        correct: output.auxiliary,
        gradients: output.gradients,
        trace: trace.collect(),
        phases: output.phases,
        exchange: output.exchange,
    })
}

/// The loss, scaled. Losses of the parts add up to that of the whole batch's mean.
pub(super) fn loss(
    output: Value,
    targets: &TargetTensor,
    scale: Option<Tensor<1>>,
    parts: usize,
) -> (Tensor<1>, Correct) {
    let (loss, correct) = targets.compared(output);
    let loss = match parts {
        1 => loss,
        _ => loss / parts as f64,
    };
    let loss = match scale {
        Some(scale) => loss * scale,
        None => loss,
    };
    (loss, correct)
}

/// What a part of a batch gives.
pub(super) struct Part {
    /// Scaled, as the gradients are.
    pub(super) loss: Tensor<1>,
    pub(super) correct: Correct,
    pub(super) gradients: GradientsParams,
    pub(super) phases: Vec<PhaseReading>,
    pub(super) trace: Vec<TraceEntry>,
    pub(super) exchange: Option<ExchangeReading>,
}

/// What runs the steps, with its plan.
pub(super) enum Engine {
    Recorded {
        step: Rc<RefCell<RecordedStep>>,
        largest: Largest,
        /// Whether the next step is traced.
        traced: bool,
        tracker: Option<Arc<Tracker>>,
    },
    Modules {
        executor: Executor,
        /// What stages cost under the schedule.
        chain: Chain,
        /// Counted in the chain, but no live buffers.
        beside_buffers: Bytes,
    },
}

/// The most that any stage of a recording takes. Its stages need not be those of the model.
pub(super) struct Largest {
    forward: Bytes,
    update: Bytes,
    first_update: Bytes,
    any: Bytes,
}

impl Largest {
    fn of(chain: &Chain) -> Self {
        let grad_bytes = chain.grad_bytes();
        let most = |needed: &dyn Fn(usize) -> Bytes| {
            let needs = (0..chain.stages.len()).map(needed);
            needs.max().unwrap_or_default()
        };
        let update = |first| most(&|stage| needed_by_update(chain, grad_bytes, stage, first));
        Self {
            forward: most(&|stage| needed(chain, Action::Forward(StageId(stage)))),
            update: update(false),
            first_update: update(true),
            any: most_of_any(chain),
        }
    }
}

/// The most that one action takes, whatever the schedule.
fn most_of_any(chain: &Chain) -> Bytes {
    let of_stage = |stage: usize| {
        let stage = StageId(stage);
        let tracked = Action::ForwardTracked {
            stage,
            alternative: 0,
        };
        [Action::Forward(stage), tracked, Action::Backward(stage)]
    };
    let actions = (0..chain.stages.len()).flat_map(of_stage);
    let needs = actions.chain([Action::Loss, Action::Optimize]);
    let needs = needs.map(|action| needed(chain, action));
    needs.max().unwrap_or_default() + chain.optimizer.state_bytes
}

impl Engine {
    /// Runs a recorded step whose stages cost what `chain` says.
    pub(super) fn recorded(step: Rc<RefCell<RecordedStep>>, chain: &Chain) -> Self {
        let optimizer = step.borrow().optimizer_cost();
        let chain = Chain {
            optimizer,
            ..chain.clone()
        };
        Self::Recorded {
            step,
            largest: Largest::of(&chain),
            traced: false,
            tracker: None,
        }
    }

    /// When parameters are updated.
    pub(super) fn update(&self) -> Update {
        match self {
            Self::Recorded { step, .. } => step.borrow().update(),
            Self::Modules { .. } => Update::After,
        }
    }

    /// Runs forward, loss and backward of one of `parts` equal parts of a batch.
    pub(super) fn run(
        &self,
        model: &Sequential<Stage>,
        (input, targets, scale): StepBatch,
        seed: StepSeed,
        parts: usize,
        device: &Device,
    ) -> Result<Part, TrainError> {
        match self {
            Self::Modules { executor, .. } => {
                let step = || {
                    executor.step(model, input, seed, |output| {
                        loss(output, &targets, scale.clone(), parts)
                    })
                };
                let output = quiet::catch(step).map_err(TrainError::Device)??;
                Ok(Part {
                    loss: output.loss,
                    correct: output.extra,
                    gradients: output.gradients,
                    phases: output.phases,
                    trace: output.trace,
                    exchange: None,
                })
            }
            Self::Recorded {
                step,
                traced,
                tracker,
                ..
            } => {
                let watched = *traced || tracker.is_some();
                run_recorded(step, tracker.as_deref(), seed, device, |step, watch| {
                    let batch = (input, targets, scale);
                    match watched {
                        true => step.run_watched(model, batch, watch),
                        false => step.run(model, batch),
                    }
                })
            }
        }
    }

    /// As [`run`](Self::run), of a whole batch, with the parameters updated on the way.
    pub(super) fn run_updating(
        &self,
        model: &mut Sequential<Stage>,
        batch: StepBatch,
        seed: StepSeed,
        (rate, optimizer): (f64, &mut AnyOptimizer),
        device: &Device,
    ) -> Result<Part, TrainError> {
        let Self::Recorded {
            step,
            traced,
            tracker,
            ..
        } = self
        else {
            return Err(UpdateRefused::Modules.into());
        };
        let watched = *traced || tracker.is_some();
        run_recorded(
            step,
            tracker.as_deref(),
            seed,
            device,
            |step, watch| match watched {
                true => step.run_updating_watched(model, batch, rate, optimizer, watch),
                false => step.run_updating(model, batch, rate, optimizer),
            },
        )
    }

    /// Whether the next step is traced.
    pub(super) fn trace(&mut self, on: bool, meter: &dyn Meter) {
        match self {
            Self::Recorded { traced, .. } => *traced = on,
            Self::Modules { executor, .. } => {
                // On the processor whatever is kept is measured as well.
                let tracing = |schedule: &Schedule| match meter.read().reserved_bytes {
                    Some(_) => Tracing::EVERY_ACTION,
                    None => Tracing::beside(meter.lifetime_peak().in_use_bytes, schedule),
                };
                let tracing = on.then(|| tracing(executor.schedule()));
                executor.trace(tracing);
            }
        }
    }

    /// Tells a tracker of every action of the next step.
    pub(super) fn track(&mut self, by: Option<Arc<Tracker>>) {
        match self {
            Self::Recorded { tracker, .. } => *tracker = by,
            Self::Modules { executor, .. } => executor.set_hook(by.map(|tracker| {
                let hook: ActionHook = Arc::new(move |action| tracker.done(action));
                hook
            })),
        }
    }

    /// From now on nothing is recomputed in a model of so many stages.
    pub(super) fn recompute_nothing(
        &mut self,
        stages: usize,
        meter: &Arc<dyn Meter>,
    ) -> Result<(), TrainError> {
        match self {
            Self::Recorded { step, .. } => {
                step.borrow_mut().plan_again(None, GraphPlanner::None)?;
            }
            Self::Modules { executor, .. } => {
                let plain = planner::none(stages)?;
                *executor = Executor::new(plain).with_meter(Arc::clone(meter));
            }
        }
        Ok(())
    }

    /// Whether the plan ends with the update that the trainer makes.
    pub(super) fn updates(&self) -> bool {
        match self {
            Self::Recorded { .. } => true,
            Self::Modules { executor, .. } => {
                executor.schedule().actions().last() == Some(&Action::Optimize)
            }
        }
    }

    /// Makes room in the pools for bytes that the caller allocates.
    pub(super) fn make_room(&self, bytes: Bytes) {
        match self {
            Self::Recorded { step, .. } => step.borrow().make_room(bytes),
            Self::Modules { executor, .. } => {
                if let Some(room) = executor.room() {
                    room.make(bytes);
                }
            }
        }
    }

    /// Makes room for a forward of a stage outside of a step.
    pub(super) fn make_room_for_forward(&self, stage: usize) {
        match self {
            Self::Recorded { step, largest, .. } => step.borrow().make_room(largest.forward),
            Self::Modules { executor, .. } => {
                if let Some(room) = executor.room() {
                    room.make_for(Action::Forward(StageId(stage)));
                }
            }
        }
    }

    /// Makes room for the update of a stage's parameters.
    pub(super) fn make_room_for_update(&self, stage: usize, first_step: bool) {
        match self {
            Self::Recorded { step, largest, .. } => step.borrow().make_room(match first_step {
                true => largest.first_update,
                false => largest.update,
            }),
            Self::Modules { executor, .. } => {
                if let Some(room) = executor.room() {
                    room.make_for_update(stage, first_step);
                }
            }
        }
    }

    /// What the first update takes, in which the optimizer's state comes.
    pub(super) fn first_update(&self) -> Bytes {
        let optimizer = match self {
            Self::Recorded { step, .. } => step.borrow().optimizer_cost(),
            Self::Modules { chain, .. } => chain.optimizer,
        };
        optimizer.state_bytes + optimizer.temp_bytes
    }

    /// The most that one action or the update takes.
    pub(super) fn largest_need(&self) -> Bytes {
        match self {
            Self::Recorded { largest, .. } => largest.any,
            Self::Modules { chain, .. } => most_of_any(chain),
        }
    }

    /// Whether the step itself notices what else comes to be in use, and plans again within the same budget.
    pub(super) fn counts_growth(&self) -> bool {
        matches!(self, Self::Recorded { .. })
    }

    /// How much more was in use than planned, where the step planned itself again for it since this was last asked.
    pub(super) fn take_growth(&self) -> Option<Bytes> {
        match self {
            Self::Recorded { step, .. } => step.borrow().take_growth(),
            Self::Modules { .. } => None,
        }
    }

    /// How often pools were trimmed so that they stayed within the budget.
    pub(super) fn trims(&self) -> u64 {
        match self {
            Self::Recorded { step, .. } => step.borrow().trims(),
            Self::Modules { executor, .. } => executor.room().map_or(0, Room::trims),
        }
    }

    /// The timeline of a step that was traced.
    pub(super) fn timeline(
        &self,
        step: usize,
        trace: &[TraceEntry],
    ) -> Result<Timeline, Violation> {
        match self {
            Self::Recorded { step: recorded, .. } => {
                let recorded = recorded.borrow();
                let (plan, optimizer) = (recorded.staged_plan(), recorded.optimizer_cost());
                Ok(Timeline::of_recorded(step, &plan, &optimizer, trace))
            }
            Self::Modules {
                executor,
                chain,
                beside_buffers,
            } => {
                let (schedule, done) = (executor.schedule(), executor.done());
                Timeline::new(step, chain, schedule, &done, trace, *beside_buffers)
            }
        }
    }
}
