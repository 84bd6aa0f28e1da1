//! A step that was abandoned for want of memory, and the smaller budget to try next.

use rekindle_plan::Bytes;
use thiserror::Error;

use super::trainer::TrainError;
use crate::{executor::StepError, meter::FailedAllocation, record::RecordError};

/// Share of what was there when an allocation failed that the next plan may take.
const NEXT: f64 = 0.95;

/// Share of a plan's peak that the next plan may take where a device does not say what was there.
const NEXT_UNKNOWN: f64 = 0.9;

/// Why a step was abandoned. Nothing is left of it: parameters, statistics and optimizer are what they were before.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Shortage {
    /// An allocation of the process failed.
    #[error("{0}")]
    Failed(FailedAllocation),
    /// The device ran out of memory.
    #[error("the device ran out of memory: {0}")]
    Device(String),
    /// The step took more than the budget.
    #[error("the step took {peak}, more than the budget of {budget}")]
    OverBudget {
        /// What it took.
        peak: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// Something else takes memory since the plan was made.
    #[error("{by} more are in use beside the step than when it was planned for {budget}")]
    Grown {
        /// How much.
        by: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// Something else takes so much memory that no plan fits the budget.
    #[error(
        "no plan fits the budget of {budget} beside what else is in use: the smallest would be {smallest}"
    )]
    NoRoom {
        /// The budget.
        budget: Bytes,
        /// What would do.
        smallest: Bytes,
    },
}

impl Shortage {
    /// The budget of the next plan; `None` where no smaller one can help. `last` is what the last plan was made for, its
    /// peak is `peak`, and `beside` is in use beside what plans count.
    pub(super) fn next_budget(
        &self,
        last: Option<Bytes>,
        peak: Bytes,
        beside: Bytes,
    ) -> Option<Bytes> {
        let limit = last.map_or(peak, |last| last.min(peak));
        let share = |bytes: Bytes, share: f64| Bytes((bytes.0 as f64 * share) as u64);
        let next = match self {
            Self::Failed(failure) => share(limit.min(failure.in_use), NEXT),
            Self::Device(_) => share(limit, NEXT_UNKNOWN),
            // What the plan did not foresee, whether it came in this step or before.
            Self::OverBudget { peak: took, budget } => {
                let unforeseen = share(*took - peak, 1.0 + (1.0 - NEXT));
                let next = *budget - unforeseen.max(beside);
                let next = last.map_or(next, |last| next.min(share(last, NEXT)));
                return (next > Bytes::ZERO).then_some(next);
            }
            Self::Grown { budget, .. } => *budget,
            Self::NoRoom { .. } => return None,
        };
        let next = next - beside;
        (next > Bytes::ZERO && (last.is_none_or(|last| next < last) || beside > Bytes::ZERO))
            .then_some(next)
    }
}

impl TrainError {
    /// The same, told as a shortage where it is one.
    pub(super) fn or_shortage(self) -> Self {
        let shortage = match self {
            Self::Step(StepError::OutOfMemory(failure))
            | Self::Recorded(RecordError::OutOfMemory(failure)) => Shortage::Failed(failure),
            Self::Recorded(RecordError::OverBudget { in_use, budget }) => Shortage::OverBudget {
                peak: in_use,
                budget,
            },
            Self::Recorded(RecordError::Infeasible { budget, smallest }) => {
                Shortage::NoRoom { budget, smallest }
            }
            Self::Recorded(RecordError::Device(message)) | Self::Device(message)
                if speaks_of_memory(&message) =>
            {
                Shortage::Device(message)
            }
            other => return other,
        };
        Self::Short(shortage)
    }
}

/// Whether a device's message is one of memory that ran out: cubecl tells of that in words alone.
#[must_use]
pub fn speaks_of_memory(message: &str) -> bool {
    let message = message.to_lowercase();
    [
        "out of memory",
        "out of device memory",
        "outofmemory",
        "out_of_memory",
        "buffertoobig",
        "can't allocate",
    ]
    .iter()
    .any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_next_budget_is_smaller_until_none_can_help() {
        let failure = FailedAllocation {
            asked: Bytes(500),
            in_use: Bytes(800),
        };
        let failed = Shortage::Failed(failure);
        assert_eq!(
            failed.next_budget(None, Bytes(1000), Bytes(0)),
            Some(Bytes(760))
        );
        assert_eq!(
            failed.next_budget(Some(Bytes(600)), Bytes(590), Bytes(60)),
            Some(Bytes(500))
        );
        let over = Shortage::OverBudget {
            peak: Bytes(1100),
            budget: Bytes(1000),
        };
        assert_eq!(
            over.next_budget(Some(Bytes(1000)), Bytes(1000), Bytes(0)),
            Some(Bytes(895))
        );
        let grown = Shortage::Grown {
            by: Bytes(300),
            budget: Bytes(1000),
        };
        assert_eq!(
            grown.next_budget(Some(Bytes(1000)), Bytes(900), Bytes(300)),
            Some(Bytes(700))
        );
        let full = Shortage::NoRoom {
            budget: Bytes(1000),
            smallest: Bytes(1200),
        };
        assert_eq!(
            full.next_budget(Some(Bytes(1000)), Bytes(900), Bytes(0)),
            None
        );
    }
}
