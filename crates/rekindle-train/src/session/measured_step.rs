//! A measured training step as a file: all that its plans are made from.
//!
//! The file is a chain ([`Chain::from_json`]) with one more key, `profile`: what a plan that holds on the device needs and
//! a chain cannot say. A chain without it is taken at its word.

use rekindle_plan::{
    Bytes, Chain, ChainError, Plan, PlanRequest, PlannerKind, Seconds, frontier, plan,
};
use serde::{Deserialize, Serialize};

use super::{Planned, RunError, recorded, terms::Terms};
use rekindle::{
    profile::Measured,
    record::{Link, StepProfile},
};

/// A measured training step, apart from its model.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredStep {
    /// What each stage costs: what its operations do together, at most.
    pub chain: Chain,
    known: Known,
}

/// What is known of the step besides its chain.
#[derive(Debug, Clone, PartialEq)]
enum Known {
    /// Nothing.
    Nothing,
    /// Its stages were counted; it runs each batch in so many parts.
    Counted(Box<Measured>, usize),
    /// Its operations were measured.
    Recorded(Box<Profile>),
}

/// A recorded step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    terms: Terms,
    step: StepProfile,
}

impl MeasuredStep {
    pub(super) fn recorded(chain: Chain, terms: Terms, step: StepProfile) -> Self {
        let known = Known::Recorded(Box::new(Profile { terms, step }));
        Self { chain, known }
    }

    /// A step whose stages were counted, which runs each batch in so many parts.
    #[must_use]
    pub fn counted(measured: Measured, micro_batches: usize) -> Self {
        Self {
            chain: measured.chain.clone(),
            known: Known::Counted(Box::new(measured), micro_batches),
        }
    }

    fn profile(&self) -> Option<&Profile> {
        match &self.known {
            Known::Recorded(profile) => Some(profile),
            Known::Nothing | Known::Counted(..) => None,
        }
    }

    /// Whether plans are of recorded operations.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.profile().is_some()
    }

    /// The link to host memory, where the step was measured with one.
    #[must_use]
    pub fn link(&self) -> Option<&Link> {
        self.profile()?.step.link.as_ref()
    }

    /// The same, where tensors of a plan may take so many bytes of host memory, or with `None` stay on the device. Nothing
    /// where the step was measured without a link.
    #[must_use]
    pub fn with_host(mut self, host: Option<Bytes>) -> Self {
        if let Known::Recorded(profile) = &mut self.known {
            let link = profile.step.link.zip(host);
            profile.step.link = link.map(|(link, host_bytes)| Link { host_bytes, ..link });
        }
        self
    }

    /// Reads a chain, with its profile where there is one.
    ///
    /// # Errors
    ///
    /// As [`Chain::from_json`], and if the profile is of another step than the chain.
    pub fn from_json(text: &str) -> Result<Self, ChainError> {
        /// The rest is read as a chain.
        #[derive(Deserialize)]
        struct File {
            profile: Option<Profile>,
        }
        let chain = Chain::from_json(text)?;
        let File { profile } = serde_json::from_str(text).map_err(of_json)?;
        let known = profile.map_or(Known::Nothing, |profile| Known::Recorded(Box::new(profile)));
        Ok(Self { chain, known })
    }

    /// Writes the file: the chain indented, the profile in one line.
    ///
    /// # Errors
    ///
    /// As [`Chain::to_json`].
    pub fn to_json(&self) -> Result<String, ChainError> {
        let chain = self.chain.to_json()?;
        let (Some(profile), Some(open)) = (self.profile(), chain.strip_suffix("\n}")) else {
            return Ok(chain);
        };
        let profile = serde_json::to_string(profile).map_err(of_json)?;
        Ok(format!("{open},\n  \"profile\": {profile}\n}}"))
    }

    /// Plans as [`Subject::plan`](super::Subject::plan) does where the step was measured; only what measuring took there
    /// does not count. For a chain without a profile nothing is held back.
    ///
    /// # Errors
    ///
    /// If there is no such plan.
    pub fn plan(&self, request: &PlanRequest) -> Result<Planned, RunError> {
        match &self.known {
            Known::Nothing => {
                let made = plan(&self.chain, request)?;
                self.planned(made, &self.plain_of_chain()?, request.budget)
            }
            Known::Counted(measured, micro_batches) => {
                let (made, plain) = (measured.plan(request)?, measured.plain()?);
                // A plan is for one part of a batch; the optimizer's step comes once.
                let whole_step = |step: Seconds| {
                    let update = self.chain.optimizer.step_s;
                    (step - update) * *micro_batches as f64 + update
                };
                let (step, plain_step) = (whole_step(made.step), whole_step(plain.step));
                let chain = measured.under(&made.schedule);
                Ok(Planned {
                    step,
                    plain_step,
                    ..Planned::of_chain(chain, made, &plain, request.budget)?
                })
            }
            Known::Recorded(profile) => {
                recorded::plan_profile(request, &profile.step, &self.chain, &profile.terms)
            }
        }
    }

    /// The useful plans of a planner, as [`Subject::frontier`](super::Subject::frontier) finds them.
    ///
    /// # Errors
    ///
    /// As [`plan`](Self::plan).
    pub fn frontier(&self, request: PlanRequest) -> Result<Vec<(Bytes, Planned)>, RunError> {
        if self.is_recorded() {
            return recorded::frontier(request, |request| self.plan(&request));
        }
        let plain = self.plain_of_chain()?;
        let plans = frontier(&self.chain, request.planner, request.slots)?;
        let planned = plans.into_iter().map(|plan| {
            let budget = plan.peak;
            Ok((budget, self.planned(plan, &plain, None)?))
        });
        planned.collect()
    }

    /// A plan of the chain, taken at its word.
    fn planned(
        &self,
        plan: Plan,
        plain: &Plan,
        budget: Option<Bytes>,
    ) -> Result<Planned, RunError> {
        Ok(Planned::of_chain(self.chain.clone(), plan, plain, budget)?)
    }

    fn plain_of_chain(&self) -> Result<Plan, RunError> {
        let request = PlanRequest {
            planner: PlannerKind::None,
            ..PlanRequest::default()
        };
        Ok(plan(&self.chain, &request)?)
    }
}

fn of_json(error: serde_json::Error) -> ChainError {
    ChainError::Json {
        message: error.to_string(),
        line: error.line(),
        column: error.column(),
    }
}
