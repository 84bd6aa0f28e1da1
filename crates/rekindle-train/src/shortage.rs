//! A step that was abandoned because of too little memory, and the smaller budget to try next.

use rekindle_plan::Bytes;
use thiserror::Error;

use rekindle::{meter::FailedAllocation, record::RecordError};

/// Share of the memory that was available when an allocation failed, for the next plan.
const NEXT: f64 = 0.95;

/// Share of a plan's peak for the next plan, if the available memory is unknown.
const NEXT_UNKNOWN: f64 = 0.9;

/// Why a step was abandoned. It has no effect: parameters, statistics and optimizer are those before the step.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Shortage {
    /// An allocation of the process failed.
    #[error("{0}")]
    Failed(FailedAllocation),
    /// The device ran out of memory.
    #[error("{}", refused(*.asked, .message))]
    Device {
        /// The requested bytes, if the device reports them.
        asked: Option<Bytes>,
        /// Its message.
        message: String,
    },
    /// The device ran out of memory in an update, which cannot be undone.
    #[error(
        "the device ran out of memory in the update before, and the parameters are lost; the last snapshot is from before"
    )]
    InUpdate,
    /// The step exceeded the budget.
    #[error("the step took {peak}, more than the budget of {budget}")]
    OverBudget {
        /// Its peak.
        peak: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// Other memory in use has grown since planning.
    #[error("{by} more are in use beside the step than when it was planned for {budget}")]
    Grown {
        /// How much.
        by: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// Kernels for tensors that come back from host memory are not chosen yet, and choosing them does not fit the budget.
    #[error(
        "choosing kernels for tensors that come back from host memory may take {needed}, over {budget}"
    )]
    Choosing {
        /// Memory that it may need.
        needed: Bytes,
        /// The budget.
        budget: Bytes,
    },
    /// Other memory in use is so large that no plan fits the budget.
    #[error(
        "no plan fits the budget of {budget} beside what else is in use: the smallest would be {smallest}"
    )]
    NoRoom {
        /// The budget.
        budget: Bytes,
        /// The smallest feasible budget.
        smallest: Bytes,
    },
}

impl Shortage {
    /// What was short in a step that ended with this error, if that was the cause.
    pub(super) fn of(error: &RecordError) -> Option<Self> {
        Some(match error {
            RecordError::OutOfMemory(failure) => Self::Failed(*failure),
            RecordError::OverBudget { in_use, budget } => Self::OverBudget {
                peak: *in_use,
                budget: *budget,
            },
            RecordError::Infeasible {
                budget, smallest, ..
            } => Self::NoRoom {
                budget: *budget,
                smallest: *smallest,
            },
            RecordError::Device(message) if speaks_of_memory(message) => Self::Device {
                asked: asked(message),
                message: message.clone(),
            },
            _ => return None,
        })
    }

    /// The budget of the next plan; `None` if no smaller one can help. `last` is the budget of the last plan, and
    /// `peak` its peak. `context` is the memory of the device driver's context, which no plan changes; `left` is the
    /// memory that the device has for a plan, if known.
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
            // The excess over the predicted peak, whether from this step or an earlier one.
            Self::OverBudget { peak: took, budget } => {
                let unforeseen = share(*took - peak, 1.0 + (1.0 - NEXT));
                let next = *budget - unforeseen;
                let next = last.map_or(next, |last| next.min(share(last, NEXT)));
                return (next > Bytes::ZERO).then_some(next);
            }
            // The next plan moves nothing to the host.
            Self::Choosing { budget, .. } => return Some(*budget),
            // A step that found more memory in use has already planned itself again.
            Self::Grown { .. } | Self::InUpdate | Self::NoRoom { .. } => return None,
        };
        (next > Bytes::ZERO && last.is_none_or(|last| next < last)).then_some(next)
    }
}

/// A device's message in one line.
fn refused(asked: Option<Bytes>, message: &str) -> String {
    match asked {
        Some(asked) => format!("the device could not allocate {asked}"),
        None => {
            let line = message.lines().next().unwrap_or_default();
            format!("the device ran out of memory: {line}")
        }
    }
}

/// The requested bytes in a device's message.
fn asked(message: &str) -> Option<Bytes> {
    let (_, rest) = ["memory allocating ", "allocate buffer of size: "]
        .iter()
        .find_map(|words| message.split_once(words))?;
    let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok().map(Bytes)
}

/// Whether a device's message reports that memory ran out: cubecl reports that only in its text.
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
            let error = RecordError::Device(format!("a kernel did not run: {error}"));
            let short = Shortage::of(&error).expect("a shortage");
            assert_eq!(short.to_string(), "the device could not allocate 120.6 KiB");
        }
        let binding =
            "Buffer binding 0 range 134221824 exceeds `max_*_buffer_binding_size` limit 134217728";
        assert!(speaks_of_memory(binding));
        let other = RecordError::Device("an illegal memory access".into());
        assert_eq!(Shortage::of(&other), None);
    }
}
