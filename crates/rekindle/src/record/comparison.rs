//! Whether a step is compared with its recording.

/// Whether a step is compared with its recording. A comparison records the step again and detects every difference: a
/// branch of Rust code, a number, a changed `dropout.prob`, a `detach`.
///
/// Independent of this, every step compares the shapes of the batch, and the module's parameters in order: their ids,
/// shapes, types, and whether they train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Comparison {
    /// In every step. [`PlanSummary::comparison_time`](super::PlanSummary::comparison_time) is the time it takes.
    #[default]
    EveryStep,
    /// Never, for a step that depends on nothing but the shapes and the parameters: any other change is missed.
    Never,
}
