//! The memory/time frontier of a planner.

use rekindle_plan::{Bytes, Planner, Request, Seconds};

use super::{Planned, RunError, recorded::smallest_budget};
use rekindle::record::with_reserve;

/// Number of budgets between the smallest and the plain run's.
const BUDGETS: u64 = 12;

/// Plans that no other plan equals or beats in both peak and time.
#[derive(Debug, Clone, PartialEq)]
pub struct Frontier {
    /// The peak without recomputing.
    pub plain_peak: Bytes,
    /// The step time without recomputing.
    pub plain_step: Seconds,
    /// The plans, from the smallest peak to the largest; each is faster than the previous one.
    pub points: Vec<FrontierPoint>,
}

/// A plan on the frontier.
#[derive(Debug, Clone, PartialEq)]
pub struct FrontierPoint {
    /// A budget that it fits, the smallest of those that were tried.
    pub budget: Bytes,
    /// Its predicted peak.
    pub peak: Bytes,
    /// Its predicted step time.
    pub step: Seconds,
    /// The planner that found it.
    pub planner: String,
    /// Number of segments; `None` if stages are recomputed in another way.
    pub segments: Option<usize>,
    /// Number of repeated operations; `None` if only a chain is known.
    pub repeated: Option<usize>,
}

impl FrontierPoint {
    fn new(budget: Bytes, plan: &Planned) -> Self {
        Self {
            budget,
            peak: plan.peak,
            step: plan.step,
            planner: plan.planner.clone(),
            segments: plan.segments.as_ref().map(Vec::len),
            repeated: plan.operations.map(|(repeated, _)| repeated),
        }
    }
}

impl Frontier {
    /// Those of some plans that are on the frontier.
    pub(super) fn new(plain: &Planned, mut points: Vec<FrontierPoint>) -> Self {
        points.sort_by(|a, b| {
            let peak = a.peak.cmp(&b.peak);
            peak.then(a.step.0.total_cmp(&b.step.0))
        });
        let mut fastest = f64::INFINITY;
        points.retain(|point| {
            let faster = point.step.0 < fastest;
            fastest = fastest.min(point.step.0);
            faster
        });
        Self {
            plain_peak: plain.peak,
            plain_step: plain.step,
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
    let smallest = smallest_budget(|none| plan(Some(none), request.planner))?;
    let room = with_reserve(plain.peak).0.saturating_sub(smallest.0);
    let mut points = Vec::new();
    for place in 0..=BUDGETS {
        let budget = Bytes(smallest.0 + room * place / BUDGETS);
        // The smallest budget was found while another plan was in memory.
        if let Ok(planned) = plan(Some(budget), request.planner) {
            points.push(FrontierPoint::new(budget, &planned));
        }
    }
    Ok(Frontier::new(&plain, points))
}
