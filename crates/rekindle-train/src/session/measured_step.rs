//! A measured training step as a file: the complete input for planning.
//!
//! The file is a chain ([`Chain::from_json`]) with one more key, `profile`: data that exact plans for the device need
//! and a chain cannot express. Without it, plans are made for the chain's numbers without a reserve.

use rekindle_plan::{Action, Bytes, Chain, ChainError, Planner, Request, StageId, chain_frontier};
use serde::{Deserialize, Serialize};

use super::{
    PlanFile, Planned, RunError,
    frontier::{Frontier, frontier},
};
use crate::{model::spec::ModelSpec, run_error::refused, settings::TrainSettings};
use rekindle::record::{
    Estimate, PlanSummary, RecordError, StepProfile,
    driver::{Extra, ExtraWork, StagedPlan, extra, plan_of_chain, plan_of_profile},
};

/// A measured training step, without its model.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredStep {
    /// The costs of each stage: an upper bound for its operations together.
    pub chain: Chain,
    /// Further data about the step.
    profile: Option<Profile>,
}

/// A recorded step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    /// Parts that a batch runs in.
    micro_batches: usize,
    step: StepProfile,
}

impl MeasuredStep {
    pub(super) fn recorded(chain: Chain, micro_batches: usize, step: StepProfile) -> Self {
        let profile = Profile {
            micro_batches,
            step,
        };
        Self {
            chain,
            profile: Some(profile),
        }
    }

    /// A step with only a chain.
    #[must_use]
    pub fn of_chain(chain: Chain) -> Self {
        Self {
            chain,
            profile: None,
        }
    }

    /// The step of a model that was estimated.
    #[must_use]
    pub fn estimated(estimate: &Estimate, model: &ModelSpec, settings: &TrainSettings) -> Self {
        let names = model.stage_names();
        let chain = named(estimate.chain.clone(), &estimate.marks, &names);
        Self::recorded(chain, settings.parts(), estimate.profile.clone())
    }

    /// Number of recorded operations; 0 of a step with only a chain.
    pub(crate) fn operations(&self) -> usize {
        let profile = self.profile.as_ref();
        profile.map_or(0, |profile| profile.step.graph.operations.len())
    }

    /// Keeps all tensors of its plans on the device.
    #[must_use]
    pub fn without_link(mut self) -> Self {
        if let Some(profile) = &mut self.profile {
            profile.step.link = None;
        }
        self
    }

    /// Reads a chain, with its profile if there is one.
    ///
    /// # Errors
    ///
    /// See [`Chain::from_json`]; also if the profile belongs to another step than the chain.
    pub fn from_json(text: &str) -> Result<Self, ChainError> {
        /// The rest is read as a chain.
        #[derive(Deserialize)]
        struct File {
            profile: Option<Profile>,
        }
        let chain = Chain::from_json(text)?;
        let File { profile } = serde_json::from_str(text)?;
        Ok(Self { chain, profile })
    }

    /// Writes the file: the chain indented, the profile in one line.
    ///
    /// # Errors
    ///
    /// See [`Chain::to_json`].
    pub fn to_json(&self) -> Result<String, ChainError> {
        let chain = self.chain.to_json()?;
        let (Some(profile), Some(open)) = (&self.profile, chain.strip_suffix("\n}")) else {
            return Ok(chain);
        };
        let profile = serde_json::to_string(profile)?;
        Ok(format!("{open},\n  \"profile\": {profile}\n}}"))
    }

    /// Plans like [`Engine::plan`](super::Engine::plan) where the step was measured, but without counting the memory
    /// of measuring. For a chain without a profile there is no reserve.
    ///
    /// # Errors
    ///
    /// If there is no such plan.
    pub fn plan(&self, request: &Request) -> Result<Planned, RunError> {
        let smallest = || match self.numbers(&Request::within(Bytes::ZERO)) {
            Err(RecordError::Infeasible { smallest, .. }) => Some(smallest),
            _ => None,
        };
        let refused = |error| refused(error, Some(request.planner), Bytes::ZERO, smallest);
        let plan = self.numbers(request).map_err(refused)?;
        Ok(self.planned(plan))
    }

    /// Like [`plan`](Self::plan), if any plan fits.
    ///
    /// # Errors
    ///
    /// If the planner cannot plan this step.
    pub fn try_plan(&self, request: &Request) -> Result<Option<Planned>, RunError> {
        match self.numbers(request) {
            Ok(plan) => Ok(Some(self.planned(plan))),
            Err(RecordError::Infeasible { .. }) => Ok(None),
            Err(error) => Err(refused(error, Some(request.planner), Bytes::ZERO, || None)),
        }
    }

    /// The plan of a file.
    ///
    /// # Errors
    ///
    /// If it is for another step, or the step has no recorded operations.
    pub fn plan_given(&self, file: &PlanFile) -> Result<Planned, RunError> {
        let Some(Profile { step, .. }) = &self.profile else {
            let none = "the step has no recorded operations";
            return Err(RunError::Refused(none.into()));
        };
        let plan = plan_of_profile(step, None, file.order_of(step.recording)?)?;
        Ok(file.named(self.planned(plan)))
    }

    /// The memory/time frontier of a planner, like [`Engine::frontier`](super::Engine::frontier); of a chain without a
    /// profile, all its plans.
    ///
    /// # Errors
    ///
    /// See [`plan`](Self::plan).
    pub fn frontier(&self, planner: Planner) -> Result<Frontier, RunError> {
        if self.profile.is_some() {
            return frontier(planner, |request| self.plan(&request));
        }
        let plain = self.plan(&Request::of(Planner::None, None))?;
        let (chain, optimizer) = (&self.chain, &self.chain.optimizer);
        let points = chain_frontier(chain, planner, |plan| {
            let peak = plan.simulated.peak.max(chain.optimizer_peak());
            PlanSummary {
                planner: plan.planner,
                budget: Some(peak),
                predicted_peak: peak,
                predicted_in_use: peak,
                predicted_time: plan.simulated.time + optimizer.step_s,
                segments: plan.segments(),
                repeated: plan.simulated.repeated,
                ..plain.summary.clone()
            }
        });
        let points =
            points.map_err(|error| refused(error.into(), Some(planner), Bytes::ZERO, || None))?;
        Ok(Frontier::new(planner, points))
    }

    /// What one of its plans does beyond the plain step, the longest first.
    ///
    /// # Errors
    ///
    /// If the plan is of another step.
    pub fn extra(&self, planned: &Planned) -> Result<Vec<Extra>, RunError> {
        if let (Some(profile), Some(order)) = (&self.profile, &planned.staged.order) {
            return Ok(extra(&profile.step, order)?);
        }
        let actions = planned.actions();
        let again = self.chain.stages.iter().enumerate().map(|(place, stage)| {
            let forward = Action::Forward(StageId(place));
            let runs = actions.iter().filter(|action| **action == forward).count();
            let times = runs.saturating_sub(1);
            Extra {
                work: ExtraWork::Recompute,
                kind: "forward".into(),
                shape: Vec::new(),
                stage: StageId(place),
                count: 1,
                times,
                seconds: stage.forward_s * times as f64,
                bytes: Bytes(stage.output_bytes.0 * times as u64),
            }
        });
        let mut all: Vec<Extra> = again.filter(|extra| extra.times > 0).collect();
        all.sort_by(|a, b| b.seconds.0.total_cmp(&a.seconds.0));
        Ok(all)
    }

    /// A plan of one part of a batch.
    fn numbers(&self, request: &Request) -> Result<(PlanSummary, StagedPlan), RecordError> {
        match &self.profile {
            Some(Profile { step, .. }) => plan_of_profile(step, request.budget, request),
            None => plan_of_chain(&self.chain, request),
        }
    }

    /// The plan of a whole step.
    fn planned(&self, (plan, mut staged): (PlanSummary, StagedPlan)) -> Planned {
        for (stage, named) in staged.chain.stages.iter_mut().zip(&self.chain.stages) {
            stage.name.clone_from(&named.name);
            stage.param_bytes = named.param_bytes;
        }
        let profile = self.profile.as_ref();
        let parts = profile.map_or(1, |profile| profile.micro_batches);
        Planned::new(parts, plan, staged, self.chain.optimizer)
    }
}

/// The chain with the names of the model's stages.
pub(super) fn named(mut chain: Chain, marks: &[Option<usize>], names: &[String]) -> Chain {
    for (stage, mark) in chain.stages.iter_mut().zip(marks) {
        if let Some(name) = mark.and_then(|mark| names.get(mark)) {
            stage.name.clone_from(name);
        }
    }
    chain
}
