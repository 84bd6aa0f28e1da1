//! A plan in numbers.

use std::fmt;

use rekindle_plan::{Bytes, Seconds, graph::GraphPlanner};

/// A plan in numbers, as they were when it was made.
///
/// Displayed as one line: budget, both peaks, time ratio, operations that run again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepPlan {
    /// Which planner found it.
    pub planner: GraphPlanner,
    /// What it had to fit in; a share of the plain peak as the bytes that it stands for. `None` for plans without a
    /// budget.
    pub budget: Option<Bytes>,
    /// Most bytes in use while the step runs and while the optimizer updates. All that the process holds is included,
    /// as it was when the plan was made: compare it with `budget` and `plain_peak`.
    /// [`Output::predicted_peak`](super::Output::predicted_peak) is the same for one run, with what the process holds by
    /// then.
    pub predicted_peak: Bytes,
    /// Time of the step; of the optimizer's update only where it is part of the backward pass.
    pub predicted_time: Seconds,
    /// The peak of the plain run, counted as `predicted_peak` is.
    pub plain_peak: Bytes,
    /// The time of the plain run, counted as `predicted_time` is.
    pub plain_time: Seconds,
    /// Operations of the recorded step.
    pub operations: usize,
    /// Operations that run again.
    pub repeated: usize,
}

impl fmt::Display for StepPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.budget {
            Some(budget) => write!(f, "budget {budget}: ")?,
            None => f.write_str("no budget: ")?,
        }
        write!(
            f,
            "predicted peak {} instead of {}, {:.2}x the plain time; {} of {} operations run again",
            self.predicted_peak,
            self.plain_peak,
            self.predicted_time.0 / self.plain_time.0,
            self.repeated,
            self.operations,
        )
    }
}
