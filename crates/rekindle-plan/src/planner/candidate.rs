//! A schedule that may become a plan.

use super::PlanError;
use super::source::Source;
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::schedule::Schedule;
use crate::simulator::cost;

/// A schedule, what the simulator says that it takes, and where it came from.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) schedule: Schedule,
    pub(crate) peak: Bytes,
    /// In seconds, the optimizer's included.
    pub(crate) time: f64,
    pub(crate) source: Source,
}

impl Candidate {
    pub(crate) fn new(
        chain: &Chain,
        schedule: Schedule,
        source: Source,
    ) -> Result<Candidate, PlanError> {
        let (peak, time) = cost(chain, &schedule)?;
        Ok(Candidate {
            schedule,
            peak,
            time: time.0,
            source,
        })
    }

    /// The faster of two; of equally fast ones the smaller; of equals the first.
    pub(crate) fn or_faster(self, other: Candidate) -> Candidate {
        let order = other.time.total_cmp(&self.time);
        if order.then(other.peak.cmp(&self.peak)).is_lt() {
            other
        } else {
            self
        }
    }
}

/// Those that no other one equals or beats in both peak and time: from the smallest peak to the largest, each larger one
/// faster.
pub(crate) fn useful(mut found: Vec<Candidate>) -> Vec<Candidate> {
    found.sort_by(|a, b| a.peak.cmp(&b.peak).then(a.time.total_cmp(&b.time)));
    let mut kept: Vec<Candidate> = Vec::new();
    for candidate in found {
        if kept.last().is_none_or(|last| candidate.time < last.time) {
            kept.push(candidate);
        }
    }
    kept
}
