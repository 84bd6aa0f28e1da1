//! A measured chain, its costs under a given schedule, and plans whose real peak stays within the budget.

use rekindle_plan::{
    Bytes, Chain, Plan, PlanError, PlanRequest, PlannerKind, Schedule, Seconds, Stage, Violation,
    frontier, keep_useful, plan, simulate,
};

use crate::executor::{ModuleProgram, OutputBorder};

/// Share of a budget that is withheld from planners: a step's peak varies a little from run to run, with the scratch
/// memory of kernel threads that happen to be busy at the same time, and must still stay within the budget. Observed
/// variation: up to 1.2%.
const RESERVE: f64 = 0.03;

/// A measured chain, and measurements that the chain cannot express.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The chain. Its `saved_bytes` count every stage's output from its forward to the end of its backward pass.
    pub chain: Chain,
    /// What each stage's graph holds.
    pub holds: Vec<Holds>,
    /// Time of each backward call beyond its operations. It is not part of any stage's time, because stages that run as
    /// one piece share one call.
    pub backward_call_s: Seconds,
}

/// Whether a stage's graph holds the stage's input and output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holds {
    /// Whether the graph holds the stage's input.
    pub input: bool,
    /// How the stage's output is held, for each alternative of the stage, the default first.
    pub outputs: Vec<OutputHold>,
}

/// How a stage's output is held after the stage has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputHold {
    /// Whether the stage's own graph holds it until the end of the backward pass.
    pub by_own_graph: bool,
    /// The backward pass's temporary bytes above the bytes in use after all other owners have dropped the output.
    pub released_backward_temp_bytes: Bytes,
}

impl Measured {
    /// Subtracts the overhead of measuring from every time, and the backward call from every stage's time.
    pub(super) fn without_overhead(mut self, idle_s: f64) -> Self {
        let backward_call_s = self.backward_call_s.0;
        let less = |time: &mut Seconds, overhead: f64| time.0 = (time.0 - overhead).max(0.0);
        for stage in &mut self.chain.stages {
            less(&mut stage.forward_s, idle_s);
            less(&mut stage.backward_s, idle_s + backward_call_s);
            for way in &mut stage.alternatives {
                less(&mut way.forward_s, idle_s);
                less(&mut way.backward_s, idle_s + backward_call_s);
            }
        }
        let updated = self
            .chain
            .stages
            .iter()
            .filter(|stage| stage.grad_bytes.0 > 0);
        let updated = updated.count() as f64;
        less(&mut self.chain.optimizer.step_s, idle_s * updated);
        less(&mut self.chain.loss.forward_s, idle_s);
        less(&mut self.chain.loss.backward_s, idle_s + backward_call_s);
        self
    }

    /// The chain's costs under one schedule: outputs that nothing holds are counted only while they exist. Two kinds
    /// are freed early:
    ///
    /// - inside a piece of graph, where neither the stage's own graph nor the next stage's holds the output (a linear
    ///   layer before a batch normalisation): it is freed as soon as the next stage has run;
    /// - at the end of a piece whose backward pass follows at once, where the stage's own graph does not hold it: a
    ///   backward pass drops the output that it starts from.
    ///
    /// The peak under this schedule is at most that of the plain [`chain`](Self::chain), and closer to the truth.
    #[must_use]
    pub fn under(&self, schedule: &Schedule) -> Chain {
        self.under_program(&ModuleProgram::new(schedule))
    }

    fn under_program(&self, program: &ModuleProgram) -> Chain {
        let mut chain = self.chain.clone();
        for border in program.output_borders() {
            let OutputBorder {
                stage,
                alternative,
                inside,
            } = border;
            let held_by_next = inside && self.holds.get(stage + 1).is_none_or(|next| next.input);
            // A schedule of another chain may have stages that this one lacks; the simulation then reports it.
            let held = self.holds.get(stage);
            let Some(output) = held.and_then(|held| held.outputs.get(alternative)) else {
                continue;
            };
            if output.by_own_graph || held_by_next {
                continue;
            }
            let temp = output.released_backward_temp_bytes;
            let bytes = chain.stages[stage].output_bytes;
            release_output(&mut chain.stages[stage], alternative, temp);
            if let (true, Some(next)) = (inside, chain.stages.get_mut(stage + 1)) {
                next.tracked_temp_bytes += bytes;
            }
        }
        chain
    }

    /// The plan with the peak and time of its actual run.
    ///
    /// # Errors
    ///
    /// If its schedule was made for another chain.
    pub fn costed(&self, plan: Plan) -> Result<Plan, Violation> {
        let program = ModuleProgram::new(&plan.schedule);
        let simulation = simulate(&self.under_program(&program), &plan.schedule)?;
        let calls = program.backward_calls() as f64;
        Ok(Plan {
            peak: simulation.peak,
            step: simulation.time + self.backward_call_s * calls,
            ..plan
        })
    }

    /// The run without recomputing.
    ///
    /// # Errors
    ///
    /// See [`plan`](Self::plan()).
    pub fn plain(&self) -> Result<Plan, PlanError> {
        let request = PlanRequest {
            planner: PlannerKind::None,
            ..PlanRequest::default()
        };
        Ok(self.costed(plan(&self.chain, &request)?)?)
    }

    /// Plans so that the run's real peak stays within the request's budget, with a reserve of 3%.
    ///
    /// Planners work on the chain, in which every stage's output counts until the end. The resulting plans are then
    /// costed as they will run, and a plan found for a larger budget is used if it then fits and is faster.
    ///
    /// # Errors
    ///
    /// See [`plan`](rekindle_plan::plan()); the budgets in an error are those of costed plans, reserve included.
    pub fn plan(&self, request: &PlanRequest) -> Result<Plan, PlanError> {
        let Some(budget) = request.budget else {
            return Ok(self.costed(plan(&self.chain, request)?)?);
        };
        let within = without_reserve(budget);
        if request.planner == PlannerKind::Auto {
            let plain = self.plain()?;
            if plain.peak <= within {
                return Ok(plain);
            }
        }
        let plans = match request.segments {
            None => self.frontier(request.planner, request.slots)?,
            Some(_) => {
                let unbounded = PlanRequest {
                    budget: None,
                    ..*request
                };
                let in_chain_terms = PlanRequest {
                    budget: Some(within),
                    ..*request
                };
                let mut plans = vec![self.costed(plan(&self.chain, &unbounded)?)?];
                if let Ok(plan) = plan(&self.chain, &in_chain_terms) {
                    plans.push(self.costed(plan)?);
                }
                plans
            }
        };
        let smallest = plans.iter().map(|plan| plan.peak).min();
        let fitting = plans.into_iter().filter(|plan| plan.peak <= within);
        let fastest = fitting.min_by(|a, b| {
            let by_time = a.step.0.total_cmp(&b.step.0);
            by_time.then(a.peak.cmp(&b.peak))
        });
        if let Some(plan) = fastest {
            return Ok(plan);
        }
        let all = self.frontier(PlannerKind::Optimal, request.slots)?;
        let smallest_of_all = all.iter().map(|plan| plan.peak).min();
        Err(PlanError::Infeasible {
            planner: request.planner,
            budget,
            smallest: with_reserve(smallest.unwrap_or(Bytes::MAX)),
            smallest_of_all: with_reserve(smallest_of_all.unwrap_or(Bytes::MAX)),
        })
    }

    /// The memory/time frontier of a planner, costed: from the smallest peak to the largest, each larger plan faster.
    ///
    /// # Errors
    ///
    /// See [`frontier`](rekindle_plan::frontier()).
    pub fn frontier(&self, planner: PlannerKind, slots: usize) -> Result<Vec<Plan>, PlanError> {
        let mut plans = frontier(&self.chain, planner, slots)?
            .into_iter()
            .map(|plan| self.costed(plan))
            .collect::<Result<Vec<_>, _>>()?;
        keep_useful(&mut plans, |plan| (plan.peak, plan.step));
        Ok(plans)
    }
}

/// Moves a stage's output from the saved bytes to the temporary bytes of its forward and backward pass.
fn release_output(stage: &mut Stage, alternative: usize, backward_temp: Bytes) {
    let output = stage.output_bytes;
    let (saved, tracked_temp, temp) = match alternative.checked_sub(1) {
        None => (
            &mut stage.saved_bytes,
            &mut stage.tracked_temp_bytes,
            &mut stage.backward_temp_bytes,
        ),
        Some(index) => {
            let way = &mut stage.alternatives[index];
            (
                &mut way.saved_bytes,
                &mut way.tracked_temp_bytes,
                &mut way.backward_temp_bytes,
            )
        }
    };
    *saved = Bytes(saved.0.saturating_sub(output.0));
    *tracked_temp += output;
    *temp = backward_temp;
}

fn without_reserve(budget: Bytes) -> Bytes {
    Bytes((budget.0 as f64 * (1.0 - RESERVE)) as u64)
}

/// The smallest budget that leaves `bytes` after the reserve is subtracted.
#[must_use]
pub fn with_reserve(bytes: Bytes) -> Bytes {
    Bytes((bytes.0 as f64 / (1.0 - RESERVE)).ceil() as u64 + 1)
}
