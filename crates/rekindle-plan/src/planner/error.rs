//! Why there is no plan.

use super::kind::PlannerKind;
use crate::bytes::Bytes;
use crate::chain::ChainError;
use crate::schedule::ScheduleError;
use crate::simulator::Violation;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// No schedule of the planner fits the budget.
    #[error(
        "{} {budget} ({} bytes): the smallest workable budget is {smallest} ({} bytes)",
        no_fit(*planner), budget.0, smallest.0
    )]
    Infeasible {
        /// The planner that was asked.
        planner: PlannerKind,
        /// The budget, everything counted.
        budget: Bytes,
        /// The smallest budget that this planner can meet, exactly.
        smallest: Bytes,
        /// The smallest budget that any planner here can meet, exactly. In a chain that is too long for `optimal`: the
        /// smallest that the asked planner or `segments` can meet.
        smallest_of_all: Bytes,
    },
    /// The chain holds a wrong value.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A chain has at least one stage.
    #[error("a chain without stages has no plan")]
    NoStages,
    /// There are at least one and at most as many segments as stages.
    #[error(
        "cannot cut {} into {}: use 1 to {stages}",
        several(*stages, "stage"), several(*segments, "segment")
    )]
    Segments {
        /// The number of segments that was asked for.
        segments: usize,
        /// The number of stages.
        stages: usize,
    },
    /// A number of segments was given to a planner that has no use for it.
    #[error(
        "the {planner} planner takes no number of segments: only uniform and segments take one"
    )]
    SegmentsUnused {
        /// The planner.
        planner: PlannerKind,
    },
    /// There are at least one and at most as many snapshots as stages.
    #[error(
        "cannot plan {} with {}: use 1 to {stages}",
        several(*stages, "stage"), several(*snapshots, "snapshot")
    )]
    Snapshots {
        /// The number of snapshots that was asked for, the chain's input among them.
        snapshots: usize,
        /// The number of stages.
        stages: usize,
    },
    /// The table needs at least one slot, and more than a million only cost memory.
    #[error("cannot use {}: use 1 to 1000000", several(*slots, "slot"))]
    SlotCount {
        /// The number that was asked for.
        slots: usize,
    },
    /// The cuts between segments rise and lie inside the chain.
    #[error(
        "segments cannot start at stages {starts:?} of {stages}: the starts must rise, from 1 to {stages} - 1"
    )]
    Cuts {
        /// The first stages of the second and later segments.
        starts: Vec<usize>,
        /// The number of stages.
        stages: usize,
    },
    /// The chain is too long for the planner, which would take too much time or memory.
    #[error(
        "the {planner} planner takes at most {most} stages here, and the chain has {stages}: merge neighbouring stages{}",
        instead(*planner)
    )]
    TooManyStages {
        /// The planner.
        planner: PlannerKind,
        /// The number of stages.
        stages: usize,
        /// The most that the planner takes, with the number of segments that was asked for.
        most: usize,
    },
    /// So few snapshots make a schedule of more actions than fit in memory.
    #[error(
        "{} for {} make a schedule of {actions} actions, more than {most}: use more snapshots",
        several(*snapshots, "snapshot"), several(*stages, "stage")
    )]
    TooManyActions {
        /// The number of snapshots.
        snapshots: usize,
        /// The number of stages.
        stages: usize,
        /// The number of actions.
        actions: u128,
        /// The most actions of a schedule.
        most: usize,
    },
    /// A planner made a schedule that breaks a rule: a bug in this crate.
    #[error("the planner's own schedule breaks a rule, please report this: {0}")]
    Schedule(#[from] ScheduleError),
    /// A planner made a schedule that its chain cannot run: a bug in this crate.
    #[error("the planner's own schedule does not fit its chain, please report this: {0}")]
    Violation(#[from] Violation),
}

/// Whose plans do not fit.
fn no_fit(planner: PlannerKind) -> String {
    match planner {
        PlannerKind::None => "the plain run does not fit".to_owned(),
        PlannerKind::Auto => "no plan fits".to_owned(),
        _ => format!("no plan of `{planner}` fits"),
    }
}

/// What to ask for in place of a planner that cannot.
fn instead(planner: PlannerKind) -> &'static str {
    match planner {
        PlannerKind::Optimal => ", or use segments",
        _ => ", or use uniform with a number of segments",
    }
}

/// `1 stage`, `2 stages`.
fn several(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
