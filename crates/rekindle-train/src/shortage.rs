//! A step that was abandoned for want of memory, and the smaller budget to try next.

use rekindle_plan::Bytes;
use thiserror::Error;

use rekindle::meter::FailedAllocation;

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
    #[error("{}", refused(*.asked, .message))]
    Device {
        /// What was asked for, where the device says so.
        asked: Option<Bytes>,
        /// Its words.
        message: String,
    },
    /// The device ran out of memory in an update, which cannot be taken back.
    #[error(
        "the device ran out of memory in the update before, and the parameters are lost; the last snapshot is from before"
    )]
    InUpdate,
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
    /// The budget of the next plan; `None` where no smaller one can help. `last` is what the last plan was made for, and its
    /// peak is `peak`. `context` is what a device's driver took of the limit, which no plan changes; `left` is what the device
    /// can give to a plan, where it says so.
    pub(super) fn next_budget(
        &self,
        last: Option<Bytes>,
        peak: Bytes,
        context: Bytes,
        left: Option<Bytes>,
    ) -> Option<Bytes> {
        let limit = last.map_or(peak, |last| last.min(peak));
        let share = |bytes: Bytes, share: f64| Bytes((bytes.0 as f64 * share) as u64);
        let next = match self {
            Self::Failed(failure) => share(limit.min(failure.in_use), NEXT),
            Self::Device { .. } => {
                let next = context + share(limit - context, NEXT_UNKNOWN);
                left.map_or(next, |left| next.min(context + share(left - context, NEXT)))
            }
            // What the plan did not foresee, whether it came in this step or before.
            Self::OverBudget { peak: took, budget } => {
                let unforeseen = share(*took - peak, 1.0 + (1.0 - NEXT));
                let next = *budget - unforeseen;
                let next = last.map_or(next, |last| next.min(share(last, NEXT)));
                return (next > Bytes::ZERO).then_some(next);
            }
            // A step that found more in use has planned itself again.
            Self::Grown { .. } | Self::InUpdate | Self::NoRoom { .. } => return None,
        };
        (next > Bytes::ZERO && last.is_none_or(|last| next < last)).then_some(next)
    }
}

/// What a device says, in a line.
fn refused(asked: Option<Bytes>, message: &str) -> String {
    match asked {
        Some(asked) => format!("the device could not allocate {asked}"),
        None => {
            let line = message.lines().next().unwrap_or_default();
            format!("the device ran out of memory: {line}")
        }
    }
}

/// What a device was asked for, by its message.
pub(super) fn asked(message: &str) -> Option<Bytes> {
    let (_, rest) = ["memory allocating ", "allocate buffer of size: "]
        .iter()
        .find_map(|words| message.split_once(words))?;
    let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok().map(Bytes)
}

/// Whether a device's message is one of memory that ran out: cubecl tells of that in words alone.
#[must_use]
pub fn speaks_of_memory(message: &str) -> bool {
    let message = message.to_lowercase();
    [
        "out of device memory",
        "out of memory",
        "outofmemory",
        "out_of_memory",
        "buffertoobig",
        // wgpu, of a buffer that it had made and does not bind.
        "buffer_binding_size",
        "can't allocate",
    ]
    .iter()
    .any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "cubecl")]
    use crate::TrainError;

    #[test]
    fn every_next_budget_is_smaller_until_none_can_help() {
        let failure = FailedAllocation {
            asked: Bytes(500),
            in_use: Bytes(800),
        };
        let failed = Shortage::Failed(failure);
        assert_eq!(
            failed.next_budget(None, Bytes(1000), Bytes(0), None),
            Some(Bytes(760))
        );
        assert_eq!(
            failed.next_budget(Some(Bytes(600)), Bytes(590), Bytes(0), None),
            Some(Bytes(560))
        );
        let over = Shortage::OverBudget {
            peak: Bytes(1100),
            budget: Bytes(1000),
        };
        assert_eq!(
            over.next_budget(Some(Bytes(1000)), Bytes(1000), Bytes(0), None),
            Some(Bytes(895))
        );
        let full = Shortage::NoRoom {
            budget: Bytes(1000),
            smallest: Bytes(1200),
        };
        assert_eq!(
            full.next_budget(Some(Bytes(1000)), Bytes(900), Bytes(0), None),
            None
        );
        let device = Shortage::Device {
            asked: None,
            message: String::new(),
        };
        let next = |left| device.next_budget(Some(Bytes(1000)), Bytes(900), Bytes(0), left);
        assert_eq!(next(None), Some(Bytes(810)));
        assert_eq!(next(Some(Bytes(600))), Some(Bytes(570)));
        assert_eq!(next(Some(Bytes(2000))), Some(Bytes(810)));
        // Of 900 bytes 800 are the driver's, whatever the plan.
        let next = |left| device.next_budget(Some(Bytes(1000)), Bytes(900), Bytes(800), left);
        assert_eq!(next(None), Some(Bytes(890)));
        assert_eq!(next(Some(Bytes(880))), Some(Bytes(876)));
    }

    #[cfg(feature = "cubecl")]
    #[test]
    fn what_cubecl_says_of_memory_is_understood() {
        use cubecl_environment::backtrace::BackTrace;
        use cubecl_runtime::server::IoError;

        let (size, backtrace) = (123_456, BackTrace::capture());
        let errors = [
            IoError::OutOfMemory { size, backtrace },
            IoError::BufferTooBig {
                size,
                backtrace: BackTrace::capture(),
            },
        ];
        for error in errors {
            let error = TrainError::Device(format!("a kernel did not run: {error}"));
            let TrainError::Short(short) = error.or_shortage() else {
                panic!("no shortage");
            };
            assert_eq!(short.to_string(), "the device could not allocate 120.6 KiB");
        }
        let binding =
            "Buffer binding 0 range 134221824 exceeds `max_*_buffer_binding_size` limit 134217728";
        assert!(speaks_of_memory(binding));
        let other = TrainError::Device("an illegal memory access".into());
        assert!(matches!(other.or_shortage(), TrainError::Device(_)));
    }
}
