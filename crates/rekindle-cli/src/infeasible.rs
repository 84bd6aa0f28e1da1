//! The JSON document if no plan fits.

use rekindle_plan::{Bytes, PlanError, Planner};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{failure::Outcome, output};

/// Format tag of [`Infeasible`].
pub const INFEASIBLE_FORMAT: &str = "rekindle-infeasible/1";

/// In place of a plan's or a run's document; the command exits with [`NO_PLAN`](crate::exit::NO_PLAN).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Infeasible {
    /// [`INFEASIBLE_FORMAT`].
    pub format: String,
    /// The planner that was asked.
    #[schemars(with = "String", extend("enum" = Planner::ALL.map(Planner::name)))]
    pub planner: Planner,
    /// Always `false`.
    pub feasible: bool,
    /// The budget.
    pub budget_bytes: Bytes,
    /// The smallest budget that this planner fits.
    pub smallest_budget_bytes: Bytes,
    /// The smallest budget that any planner fits.
    pub smallest_budget_of_all_planners_bytes: Bytes,
    /// Where the plan of that planner has its peak, such as `while it makes the gradient of ..`; `null` if that is not known.
    pub floor: Option<String>,
}

impl Infeasible {
    /// The same as an error.
    pub fn error(&self) -> PlanError {
        PlanError::Infeasible {
            planner: self.planner,
            budget: self.budget_bytes,
            smallest: self.smallest_budget_bytes,
            smallest_of_all: self.smallest_budget_of_all_planners_bytes,
            floor: self.floor.clone(),
        }
    }

    /// Writes the document if the error is an infeasible budget, and nothing for any other error.
    pub fn report(error: &PlanError) -> Outcome {
        match error.clone() {
            PlanError::Infeasible {
                planner,
                budget,
                smallest,
                smallest_of_all,
                floor,
            } => output::json(&Self {
                format: INFEASIBLE_FORMAT.into(),
                planner,
                feasible: false,
                budget_bytes: budget,
                smallest_budget_bytes: smallest,
                smallest_budget_of_all_planners_bytes: smallest_of_all,
                floor,
            }),
            _ => Ok(()),
        }
    }
}
