//! The memory/time frontier of a planner.

use rekindle_plan::{Bytes, PlanError, Planner, Request, Seconds};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Planned, RunError};
use rekindle::record::with_reserve;

/// Number of budgets between the smallest and the plain run's.
const BUDGETS: u64 = 12;

/// Format tag of [`Frontier`].
pub const FRONTIER_FORMAT: &str = "rekindle-frontier/1";

/// What `plan --frontier --json` writes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Frontier {
    format: &'static str,
    /// The planner.
    #[schemars(extend("enum" = Planner::ALL.map(Planner::name)))]
    planner: String,
    /// The peak without recomputing.
    pub plain_peak_bytes: Bytes,
    /// The step time without recomputing.
    pub plain_step_s: Seconds,
    /// The plans, from the smallest budget up.
    pub points: Vec<FrontierPoint>,
}

/// A plan on the frontier.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FrontierPoint {
    /// The smallest budget that the plan fits.
    pub budget_bytes: Bytes,
    /// Its predicted peak.
    pub predicted_peak_bytes: Bytes,
    /// Its predicted step time.
    pub predicted_step_s: Seconds,
    /// The planner that found it.
    pub planner: String,
    /// Number of segments; `null` for nested schedules.
    pub segments: Option<usize>,
    /// Number of repeated operations, if the step has operations.
    #[serde(skip)]
    pub repeated: Option<usize>,
}

impl Frontier {
    /// Of some plans, those that no other equals or beats in both peak and time.
    pub(super) fn new(planner: Planner, plain: &Planned, mut points: Vec<FrontierPoint>) -> Self {
        points.sort_by(|a, b| {
            let peak = a.predicted_peak_bytes.cmp(&b.predicted_peak_bytes);
            peak.then(a.predicted_step_s.0.total_cmp(&b.predicted_step_s.0))
        });
        let mut fastest = f64::INFINITY;
        points.retain(|point| {
            let before = fastest;
            fastest = fastest.min(point.predicted_step_s.0);
            fastest < before
        });
        Self {
            format: FRONTIER_FORMAT,
            planner: planner.to_string(),
            plain_peak_bytes: plain.plain_peak,
            plain_step_s: plain.plain_step,
            points,
        }
    }
}

/// The frontier at some budgets; `plan` makes one plan.
pub(super) fn frontier(
    request: Request,
    mut plan: impl FnMut(Request) -> Result<Planned, RunError>,
) -> Result<Frontier, RunError> {
    let mut plan = |budget, planner| {
        plan(Request {
            budget,
            planner,
            ..request
        })
    };
    let plain = plan(None, Planner::None)?;
    let smallest = match plan(Some(Bytes::ZERO), request.planner) {
        Ok(planned) => planned.peak,
        Err(RunError::Plan(PlanError::Infeasible { smallest, .. })) => smallest,
        Err(error) => return Err(error),
    };
    let room = with_reserve(plain.peak).0.saturating_sub(smallest.0);
    let mut points = Vec::new();
    for place in 0..=BUDGETS {
        let budget = Bytes(smallest.0 + room * place / BUDGETS);
        // The smallest budget was found while another plan was in memory.
        if let Ok(planned) = plan(Some(budget), request.planner) {
            points.push(FrontierPoint {
                budget_bytes: budget,
                predicted_peak_bytes: planned.peak,
                predicted_step_s: planned.step,
                planner: planned.planner,
                segments: planned.segments.map(|segments| segments.len()),
                repeated: planned.operations.map(|(repeated, _)| repeated),
            });
        }
    }
    Ok(Frontier::new(request.planner, &plain, points))
}
