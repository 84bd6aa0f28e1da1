//! The memory/time frontier of a planner.

use rekindle_plan::{Bytes, Planner, Request};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Infeasible, Planned, RunError};
use rekindle::record::{PlanSummary, driver::with_reserve};

/// Number of budgets between the smallest and the plain run's.
const BUDGETS: u64 = 12;

/// Format tag of [`Frontier`].
pub const FRONTIER_FORMAT: &str = "rekindle-frontier/2";

/// What `plan --frontier --json` writes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Frontier {
    format: &'static str,
    /// The planner.
    planner: Planner,
    /// The plans, from the smallest budget up; each has the smallest budget that it fits.
    pub points: Vec<PlanSummary>,
}

impl Frontier {
    /// Of some plans, those that no other equals or beats in both peak and time.
    pub(super) fn new(planner: Planner, mut points: Vec<PlanSummary>) -> Self {
        points.sort_by(|a, b| {
            let peak = a.predicted_peak.cmp(&b.predicted_peak);
            peak.then(a.predicted_time.0.total_cmp(&b.predicted_time.0))
        });
        let mut fastest = f64::INFINITY;
        points.retain(|point| {
            let before = fastest;
            fastest = fastest.min(point.predicted_time.0);
            fastest < before
        });
        Self {
            format: FRONTIER_FORMAT,
            planner,
            points,
        }
    }
}

/// The frontier at some budgets; `plan` makes one plan.
pub(super) fn frontier(
    planner: Planner,
    mut plan: impl FnMut(Request) -> Result<Planned, RunError>,
) -> Result<Frontier, RunError> {
    let mut plan = |budget, planner| plan(Request::of(planner, budget));
    let plain = plan(None, Planner::None)?.summary;
    let smallest = match plan(Some(Bytes::ZERO), planner) {
        Ok(planned) => planned.summary.predicted_peak,
        Err(RunError::Infeasible(Infeasible { smallest, .. })) => smallest,
        Err(error) => return Err(error),
    };
    let room = with_reserve(plain.predicted_peak)
        .0
        .saturating_sub(smallest.0);
    let mut points = Vec::new();
    for place in 0..=BUDGETS {
        let budget = Bytes(smallest.0 + room * place / BUDGETS);
        // The smallest budget was found while another plan was in memory.
        if let Ok(planned) = plan(Some(budget), planner) {
            points.push(planned.summary);
        }
    }
    Ok(Frontier::new(planner, points))
}
