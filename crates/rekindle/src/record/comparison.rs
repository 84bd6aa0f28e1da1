//! How often a step is compared with its recording, and the cost of that.

use std::time::Duration;

/// How often a step is compared with its recording. A comparison records the step again and detects every difference: a
/// branch of Rust code, a number, a changed `dropout.prob`, a `detach`. To record the forward pass and the loss alone takes a
/// part of that, and detects all of these but a `detach` that moves from one tensor to another.
///
/// Independent of this, every step compares the shapes of the batch, and the module's parameters in order: their ids,
/// shapes, types, and whether they train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Comparison {
    /// The forward pass and the loss of every step, and the whole as with `Sampled`.
    /// [`PlanSummary::comparison_time`](super::PlanSummary::comparison_time) is the time that the former takes.
    #[default]
    EveryStep,
    /// The whole in the first three steps, and then as often as 1% of the time allows. A change is detected only at the next
    /// comparison: until then steps use the old recording. After a change, every step is compared.
    Sampled,
    /// Never, for a step that depends on nothing but the shapes and the parameters: any other change is missed.
    Never,
}

/// The number of first steps that are all compared, to find numbers that change with every step.
const FIRST: u64 = 3;

/// Share of the time for sampled comparisons.
const SAMPLED: f64 = 0.01;

impl Comparison {
    /// The next step to be compared as a whole after this one, which took some time, if that takes this `time`; `changed` is
    /// whether any differed.
    pub(super) fn next(self, time: Duration, step: u64, changed: bool, step_time: Duration) -> u64 {
        let every = match self {
            Self::Never => return u64::MAX,
            _ if changed || step < FIRST => 1.0,
            _ => (time.as_secs_f64() / (SAMPLED * step_time.as_secs_f64())).ceil(),
        };
        step + every.clamp(1.0, 1e6) as u64
    }
}
