//! What is planned: a training step that was measured.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use burn::tensor::Device;
use rekindle_plan::{Bytes, Chain, PlanError, PlanRequest, PlannerKind};

use super::{Job, Observer, Planned, RunError, ScheduleRequest, modules, prepare::Built, recorded};
use crate::{
    device::OpenDevice,
    meter::Meter,
    profile::{Measured, StageLabel, keep_useful, with_reserve},
    train::{
        ExecutorKind,
        engine::{Engine, RecordedStep},
    },
};

/// Budgets between the smallest and the plain run's at which a frontier of a recorded step is planned.
const FRONTIER_BUDGETS: u64 = 12;

/// A training step that was measured, to be planned as often as one likes.
pub struct Subject {
    meter: Arc<dyn Meter>,
    param_count: u64,
    kind: Kind,
    /// The model, where nobody else holds it: its parameters are in use in every plan.
    _held: Option<Built>,
}

enum Kind {
    Modules(Measured),
    Recorded {
        step: Rc<RefCell<RecordedStep>>,
        labels: Vec<StageLabel>,
    },
}

impl Subject {
    pub(super) fn new(
        job: &Job<'_>,
        OpenDevice { device, meter }: OpenDevice,
        observer: &mut dyn Observer,
    ) -> Result<Self, RunError> {
        let built = Built::new(job, &device)?;
        let (built, subject) = Self::of(job, built, &device, &meter, observer)?;
        Ok(Self {
            _held: Some(built),
            ..subject
        })
    }

    /// Measures a model, which comes back with the values it had.
    pub(in crate::train) fn of(
        job: &Job<'_>,
        built: Built,
        device: &Device,
        meter: &Arc<dyn Meter>,
        observer: &mut dyn Observer,
    ) -> Result<(Built, Self), RunError> {
        let (built, kind) = match job.executor {
            ExecutorKind::Modules => {
                let (built, measured) = built.measure(job, device, &**meter, observer)?;
                (built, Kind::Modules(measured))
            }
            ExecutorKind::Recorded => {
                let step = built.record(job, device, meter, observer)?;
                let step = Rc::new(RefCell::new(step));
                let labels = built.labels.clone();
                (built, Kind::Recorded { step, labels })
            }
        };
        let subject = Self {
            meter: Arc::clone(meter),
            param_count: built.shape.param_count(),
            kind,
            _held: None,
        };
        Ok((built, subject))
    }

    /// The measured stages, where modules run.
    #[must_use]
    pub fn modules(&self) -> Option<&Measured> {
        match &self.kind {
            Kind::Modules(measured) => Some(measured),
            Kind::Recorded { .. } => None,
        }
    }

    /// What each stage costs. Of a recorded step: what its operations do together, at most.
    #[must_use]
    pub fn chain(&self) -> Chain {
        match &self.kind {
            Kind::Modules(measured) => measured.chain.clone(),
            Kind::Recorded { step, labels } => {
                let step = step.borrow();
                let staged = step.staged_plan();
                let mut chain = recorded::named(staged.chain, &staged.marks, labels);
                chain.optimizer = step.optimizer_cost();
                // Counted there.
                chain.fixed_bytes -= chain.optimizer.state_bytes;
                chain
            }
        }
    }

    /// Plans as the schedule asks.
    ///
    /// # Errors
    ///
    /// If there is no such plan, or a given one is for another model.
    pub fn plan(&mut self, job: &Job<'_>, asked: &ScheduleRequest) -> Result<Planned, RunError> {
        let planned = self.plan_now(job, asked);
        let planned = with_until_now(planned, asked, peak_until_now(&*self.meter));
        planned.map_err(|error| match &job.run_dir {
            None => with_run_dir(error),
            Some(_) => error,
        })
    }

    /// The fastest plan within a smaller budget, in the middle of a run: peaks before it do not count.
    ///
    /// # Errors
    ///
    /// If none fits.
    pub(in crate::train) fn plan_smaller(
        &mut self,
        job: &Job<'_>,
        budget: Bytes,
    ) -> Result<Planned, RunError> {
        self.plan_now(job, &ScheduleRequest::Plan(PlanRequest::within(budget)))
    }

    /// The plan that a recorded step has made of itself.
    pub(in crate::train) fn planned_by_step(&self, job: &Job<'_>) -> Option<Planned> {
        match &self.kind {
            Kind::Modules(_) => None,
            Kind::Recorded { step, labels } => {
                let budget = job.budget();
                let (step, params) = (step.borrow(), self.param_count);
                Some(recorded::planned(job, &step, budget, None, labels, params))
            }
        }
    }

    fn plan_now(&mut self, job: &Job<'_>, asked: &ScheduleRequest) -> Result<Planned, RunError> {
        match &mut self.kind {
            Kind::Modules(measured) => {
                modules::make_plan(job, asked, measured, &*self.meter, self.param_count)
            }
            Kind::Recorded { step, labels } => {
                recorded::make_plan(job, asked, &mut step.borrow_mut(), labels, self.param_count)
            }
        }
    }

    /// The useful plans of a planner, from the smallest peak to the largest, each larger one faster, with the smallest
    /// budget that each is made for.
    ///
    /// # Errors
    ///
    /// As [`plan`](Self::plan).
    pub fn frontier(
        &mut self,
        job: &Job<'_>,
        request: PlanRequest,
    ) -> Result<Vec<(Bytes, Planned)>, RunError> {
        let mut plans = Vec::new();
        match &self.kind {
            Kind::Modules(measured) => {
                for plan in measured.frontier(request.planner, request.slots)? {
                    let name = plan.planner.to_string();
                    let planned = modules::planned(
                        job,
                        plan,
                        name,
                        None,
                        measured,
                        &*self.meter,
                        self.param_count,
                    )?;
                    plans.push((with_reserve(planned.peak), planned));
                }
            }
            Kind::Recorded { .. } => {
                let mut plan = |budget, planner| {
                    let request = PlanRequest {
                        budget,
                        planner,
                        ..request
                    };
                    self.plan(job, &ScheduleRequest::Plan(request))
                };
                let plain = plan(None, PlannerKind::None)?;
                let smallest = match plan(Some(Bytes(1)), request.planner) {
                    Err(RunError::Plan(PlanError::Infeasible { smallest, .. })) => smallest,
                    Err(error) => return Err(error),
                    Ok(planned) => planned.peak,
                };
                let room = with_reserve(plain.peak).0.saturating_sub(smallest.0);
                for place in 0..=FRONTIER_BUDGETS {
                    let budget = Bytes(smallest.0 + room * place / FRONTIER_BUDGETS);
                    // The smallest was found with what another plan took.
                    if let Ok(planned) = plan(Some(budget), request.planner) {
                        plans.push((budget, planned));
                    }
                }
                keep_useful(&mut plans, |(_, plan)| (plan.peak, plan.step));
            }
        }
        Ok(plans)
    }

    /// What runs the plan that was made last.
    pub(in crate::train) fn engine(&self, job: &Job<'_>, planned: &Planned) -> Option<Engine> {
        match &self.kind {
            Kind::Modules(_) => modules::engine(job, planned, &self.meter),
            Kind::Recorded { step, .. } => Some(Engine::recorded(Rc::clone(step), &planned.chain)),
        }
    }
}

/// What a run's folder takes: its paths, open files, and the trace of a step.
const RUN_DIR_BYTES: Bytes = Bytes(8 << 10);

/// The budgets that an error names, so that they also do for the same run with a folder.
fn with_run_dir(error: RunError) -> RunError {
    match error {
        RunError::Plan(PlanError::Infeasible {
            planner,
            budget,
            smallest,
            smallest_of_all,
        }) => RunError::Plan(PlanError::Infeasible {
            planner,
            budget,
            smallest: smallest + RUN_DIR_BYTES,
            smallest_of_all: smallest_of_all + RUN_DIR_BYTES,
        }),
        other => other,
    }
}

/// The most that was in use until now: on the processor measuring, recording and planning count too, and take more than
/// the step of a tiny model.
fn peak_until_now(meter: &dyn Meter) -> Bytes {
    match meter.read().reserved_bytes {
        None => meter.lifetime_peak().in_use_bytes,
        Some(_) => Bytes::ZERO,
    }
}

/// A process whose peak is no smaller than what it has taken already.
fn with_until_now(
    planned: Result<Planned, RunError>,
    asked: &ScheduleRequest,
    until_now: Bytes,
) -> Result<Planned, RunError> {
    let planned = match planned {
        Ok(planned) => Planned {
            peak: planned.peak.max(until_now),
            peak_in_use: planned.peak_in_use.max(until_now),
            plain_peak: planned.plain_peak.max(until_now),
            ..planned
        },
        Err(RunError::Plan(PlanError::Infeasible {
            planner,
            budget,
            smallest,
            smallest_of_all,
        })) => {
            return Err(RunError::Plan(PlanError::Infeasible {
                planner,
                budget,
                smallest: smallest.max(until_now),
                smallest_of_all: smallest_of_all.max(until_now),
            }));
        }
        Err(error) => return Err(error),
    };
    match (asked.budget(), asked) {
        (Some(budget), ScheduleRequest::Plan(request)) if until_now > budget => {
            Err(RunError::Plan(PlanError::Infeasible {
                planner: request.planner,
                budget,
                smallest: until_now,
                smallest_of_all: until_now,
            }))
        }
        (Some(budget), ScheduleRequest::Given { .. }) if until_now > budget => {
            Err(RunError::OverBudget {
                peak: until_now,
                budget,
            })
        }
        _ => Ok(planned),
    }
}
