//! Plans of chains, and their comparison.

use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::planner::PlanSource;
use crate::request::Planner;
use crate::schedule::Schedule;
use crate::seconds::Seconds;
use crate::simulator::simulate;

/// A schedule with its predicted cost and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The planner that found it: for `auto`, `none` or `optimal`.
    pub planner: Planner,
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
        planner: Planner,
        schedule: Schedule,
        source: PlanSource,
    ) -> Plan {
        let run = simulate(chain, &schedule);
        Plan {
            planner,
            schedule,
            peak: run.peak,
            step: run.time,
            source,
        }
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
