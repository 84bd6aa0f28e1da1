//! Requests to the planners, and their results.

use serde::{Deserialize, Serialize};

use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::planner::{PlanError, PlanSource, PlannerKind};
use crate::schedule::Schedule;
use crate::seconds::Seconds;
use crate::simulator::simulate;

/// What to plan for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanRequest {
    /// Which planner.
    pub planner: PlannerKind,
    /// The most bytes at any moment, everything counted; `None` for no limit.
    pub budget: Option<Bytes>,
    /// The number of segments, for `uniform` and `segments`; `None` leaves it to the planner.
    pub segments: Option<usize>,
    /// Into how many slots `optimal` cuts the memory in which nothing is recomputed, to tell plans apart; fewer where
    /// the table might pass 2 GB (from about 700 stages on, at the default), more where they cost nothing.
    pub slots: usize,
}

impl PlanRequest {
    /// The default number of slots.
    pub const SLOTS: usize = 500;
    /// The largest number of slots.
    pub const MOST_SLOTS: usize = 1_000_000;

    /// The fastest schedule within a budget.
    pub fn within(budget: Bytes) -> PlanRequest {
        PlanRequest {
            budget: Some(budget),
            ..PlanRequest::default()
        }
    }
}

impl Default for PlanRequest {
    fn default() -> PlanRequest {
        PlanRequest {
            planner: PlannerKind::Auto,
            budget: None,
            segments: None,
            slots: PlanRequest::SLOTS,
        }
    }
}

/// A schedule with its predicted cost and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The requested planner; for `auto`, the planner that was chosen.
    pub planner: PlannerKind,
    /// The schedule.
    pub schedule: Schedule,
    /// Its simulated peak, everything counted.
    pub peak: Bytes,
    /// Its simulated time, the optimizer's included.
    pub step: Seconds,
    /// The method that found the schedule.
    pub source: PlanSource,
}

impl Plan {
    /// A schedule of a chain with its simulated cost.
    pub(crate) fn new(
        chain: &Chain,
        planner: PlannerKind,
        schedule: Schedule,
        source: PlanSource,
    ) -> Result<Plan, PlanError> {
        let run = simulate(chain, &schedule)?;
        Ok(Plan {
            planner,
            schedule,
            peak: run.peak,
            step: run.time,
            source,
        })
    }

    /// The faster of two plans; of equally fast ones the one with the smaller peak; of equals the first.
    pub(crate) fn or_faster(self, other: Plan) -> Plan {
        let order = other.step.0.total_cmp(&self.step.0);
        match order.then(other.peak.cmp(&self.peak)).is_lt() {
            true => other,
            false => self,
        }
    }
}

/// Keeps the plans on the memory/time frontier, those that no other plan equals or beats in both peak and time, from
/// the smallest peak to the largest; each is faster than the previous one.
pub fn keep_useful<P>(plans: &mut Vec<P>, cost: impl Fn(&P) -> (Bytes, Seconds)) {
    plans.sort_by(|a, b| {
        let ((a_peak, a_step), (b_peak, b_step)) = (cost(a), cost(b));
        a_peak.cmp(&b_peak).then(a_step.0.total_cmp(&b_step.0))
    });
    let mut fastest = f64::INFINITY;
    plans.retain(|plan| {
        let (_, step) = cost(plan);
        let faster = step.0 < fastest;
        fastest = fastest.min(step.0);
        faster
    });
}
