//! A measured training step as a file: all that its plans are made from.
//!
//! The file is a chain ([`Chain::from_json`]) with one more key, `profile`: what a plan that holds on the device needs and
//! a chain cannot say. A chain without it is taken at its word.

use rekindle_plan::{
    Bytes, Chain, ChainError, PlanError, PlanRequest, PlannerKind, Schedule, Seconds, frontier,
    plan,
};
use serde::{Deserialize, Serialize};

use super::{
    Planned, RunError,
    modules::{self, Beside},
    recorded,
    terms::Terms,
};
use crate::settings::TrainSettings;
use rekindle::{
    profile::{Holds, Measured, StageLabel},
    record::{Estimate, Link, StepProfile, Wanted},
};

/// A measured training step, apart from its model.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredStep {
    /// What each stage costs. Of a recorded step: what its operations do together, at most.
    pub chain: Chain,
    profile: Option<Profile>,
}

/// What is known of the step besides its chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    terms: Terms,
    way: StepKind,
}

/// How the step runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum StepKind {
    /// Modules, stage by stage.
    Modules {
        /// What each stage's graph holds.
        holds: Vec<Holds>,
        /// What each backward call takes beyond its operations.
        backward_call_s: Seconds,
        beside_buffers: Beside,
    },
    /// Recorded operations.
    Recorded(StepProfile),
}

impl StepKind {
    pub(super) fn of_modules(measured: &Measured, beside_buffers: Beside) -> Self {
        Self::Modules {
            holds: measured.holds.clone(),
            backward_call_s: measured.backward_call_s,
            beside_buffers,
        }
    }
}

impl MeasuredStep {
    pub(super) fn new(chain: Chain, terms: Terms, way: StepKind) -> Self {
        let profile = Some(Profile { terms, way });
        Self { chain, profile }
    }

    /// A step that nothing is known of but its chain.
    #[must_use]
    pub fn of_chain(chain: Chain) -> Self {
        Self {
            chain,
            profile: None,
        }
    }

    /// A recorded step that was estimated, with the names of the model's stages.
    #[must_use]
    pub fn estimated(estimate: &Estimate, names: Vec<String>, settings: &TrainSettings) -> Self {
        let terms = Terms {
            micro_batches: settings.accumulate.max(1),
            count: rekindle::meter::Count::default(),
            param_count: estimate.trainable,
        };
        let labels = names.into_iter().map(|name| StageLabel {
            name,
            key: String::new(),
        });
        let labels: Vec<StageLabel> = labels.collect();
        let chain = recorded::named(estimate.chain.clone(), &estimate.marks, &labels);
        Self::new(chain, terms, StepKind::Recorded(estimate.profile.clone()))
    }

    /// Whether plans are of recorded operations.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        matches!(
            self.profile,
            Some(Profile {
                way: StepKind::Recorded(_),
                ..
            })
        )
    }

    /// The link to host memory, where a recorded step was measured with one.
    #[must_use]
    pub fn link(&self) -> Option<&Link> {
        match &self.profile.as_ref()?.way {
            StepKind::Recorded(profile) => profile.link.as_ref(),
            StepKind::Modules { .. } => None,
        }
    }

    /// The same, where tensors of a plan may take so many bytes of host memory, or with `None` stay on the device. Nothing
    /// where the step was measured without a link.
    #[must_use]
    pub fn with_host(mut self, host: Option<Bytes>) -> Self {
        if let Some(Profile {
            way: StepKind::Recorded(profile),
            ..
        }) = &mut self.profile
        {
            profile.link = profile
                .link
                .zip(host)
                .map(|(link, host_bytes)| Link { host_bytes, ..link });
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
        let wrong = |message: String, (line, column)| ChainError::Json {
            message,
            line,
            column,
        };
        let File { profile } = serde_json::from_str(text).map_err(|error| {
            let place = (error.line(), error.column());
            wrong(error.to_string(), place)
        })?;
        if let Some(Profile {
            way: StepKind::Modules { holds, .. },
            ..
        }) = &profile
            && holds.len() != chain.stages.len()
        {
            let (held, stages) = (holds.len(), chain.stages.len());
            let message = format!("`profile` is of {held} stages, the chain has {stages}");
            return Err(wrong(message, (0, 0)));
        }
        Ok(Self { chain, profile })
    }

    /// Writes the file: the chain indented, the profile in one line.
    ///
    /// # Errors
    ///
    /// As [`Chain::to_json`].
    pub fn to_json(&self) -> Result<String, ChainError> {
        let chain = self.chain.to_json()?;
        let (Some(profile), Some(open)) = (&self.profile, chain.strip_suffix("\n}")) else {
            return Ok(chain);
        };
        let profile = serde_json::to_string(profile).map_err(|error| ChainError::Json {
            message: error.to_string(),
            line: error.line(),
            column: error.column(),
        })?;
        Ok(format!("{open},\n  \"profile\": {profile}\n}}"))
    }

    /// Plans as [`Subject::plan`](super::Subject::plan) does where the step was measured; only what measuring took there
    /// does not count. For a chain without a profile nothing is held back.
    ///
    /// # Errors
    ///
    /// If there is no such plan.
    pub fn plan(&self, request: &PlanRequest) -> Result<Planned, RunError> {
        let Some(Profile { terms, way }) = &self.profile else {
            let plain = self.plain_of_chain()?;
            let made = plan(&self.chain, request)?;
            return Ok(Planned::of_chain(
                self.chain.clone(),
                made,
                &plain,
                request.budget,
            )?);
        };
        match way {
            StepKind::Modules {
                holds,
                backward_call_s,
                beside_buffers,
            } => {
                let measured = self.measured(holds, *backward_call_s);
                let made = measured.plan(request)?;
                let name = made.planner.to_string();
                let beside = *beside_buffers;
                modules::planned(terms, made, name, request.budget, &measured, beside)
            }
            StepKind::Recorded(profile) => {
                recorded::plan_profile(request, profile, &self.chain, terms)
            }
        }
    }

    /// As [`plan`](Self::plan), of a recorded step; where no plan fits, the smallest budget that this planner finds one for.
    ///
    /// # Errors
    ///
    /// If the request makes no sense.
    pub fn try_plan(&self, request: &PlanRequest) -> Result<Result<Planned, Bytes>, RunError> {
        match &self.profile {
            Some(Profile {
                terms,
                way: StepKind::Recorded(profile),
            }) => recorded::try_plan_profile(request, profile, &self.chain, terms),
            _ => match self.plan(request) {
                Ok(plan) => Ok(Ok(plan)),
                Err(RunError::Plan(PlanError::Infeasible { smallest, .. })) => Ok(Err(smallest)),
                Err(error) => Err(error),
            },
        }
    }

    /// A schedule over the stages of a recorded step, which the planner of this name made.
    ///
    /// # Errors
    ///
    /// If it is for another number of stages, or the step is none of recorded operations.
    pub fn plan_schedule(&self, schedule: Schedule, planner: String) -> Result<Planned, RunError> {
        match &self.profile {
            Some(Profile {
                terms,
                way: StepKind::Recorded(profile),
            }) => {
                let wanted = Wanted::Schedule(schedule);
                let named = (terms, Some(planner));
                let limits = (None, PlanRequest::SLOTS);
                Ok(recorded::plan_wanted(
                    wanted,
                    limits,
                    profile,
                    &self.chain,
                    named,
                )?)
            }
            _ => Err(RunError::OtherModel(
                "the step has no recorded operations".into(),
            )),
        }
    }

    /// The useful plans of a planner, as [`Subject::frontier`](super::Subject::frontier) finds them.
    ///
    /// # Errors
    ///
    /// As [`plan`](Self::plan).
    pub fn frontier(&self, request: PlanRequest) -> Result<Vec<(Bytes, Planned)>, RunError> {
        match &self.profile {
            None => {
                let plain = self.plain_of_chain()?;
                let plans = frontier(&self.chain, request.planner, request.slots)?;
                let planned = plans.into_iter().map(|plan| {
                    let budget = plan.peak;
                    let planned = Planned::of_chain(self.chain.clone(), plan, &plain, None)?;
                    Ok((budget, planned))
                });
                planned.collect()
            }
            Some(Profile {
                terms,
                way:
                    StepKind::Modules {
                        holds,
                        backward_call_s,
                        beside_buffers,
                    },
            }) => {
                let measured = self.measured(holds, *backward_call_s);
                modules::frontier(terms, &measured, *beside_buffers, request)
            }
            Some(_) => recorded::frontier(request, |request| self.plan(&request)),
        }
    }

    fn measured(&self, holds: &[Holds], backward_call: Seconds) -> Measured {
        Measured {
            chain: self.chain.clone(),
            holds: holds.to_vec(),
            backward_call_s: backward_call,
        }
    }

    fn plain_of_chain(&self) -> Result<rekindle_plan::Plan, RunError> {
        let request = PlanRequest {
            planner: PlannerKind::None,
            ..PlanRequest::default()
        };
        Ok(plan(&self.chain, &request)?)
    }
}
