//! The points of a sweep and their order: the plain run first, because every other row is compared with it.

use rekindle::size::Size;
use rekindle_plan::{Bytes, Planner};
use rekindle_train::verify::usual_segments;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::args::{ScheduleArgs, TrainArgs};

/// Default number of budgets between the smallest and the plain run's.
pub const BUDGETS: usize = 5;

/// Parts of a budget's leading power of two that it is rounded up to. The smallest budget differs by some hundredths
/// of a percent from one process to the next: as it stands it might be too small.
const PARTS: u64 = 64;

/// One run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Point {
    /// Nothing recomputed.
    #[default]
    Plain,
    /// So many segments.
    Segments(usize),
    /// The fastest plan for a budget.
    #[serde(rename = "budget_bytes")]
    Optimal(Bytes),
}

impl Point {
    /// The training that runs this point.
    pub fn of(self, training: TrainArgs) -> TrainArgs {
        let mut schedule = ScheduleArgs::default();
        match self {
            Self::Plain => schedule.planner = Some(Planner::None),
            Self::Segments(segments) => schedule.segments = Some(segments),
            Self::Optimal(budget) => {
                schedule.planner = Some(Planner::Auto);
                schedule.budget = Some(Size::Bytes(budget));
            }
        }
        TrainArgs {
            schedule,
            ..training
        }
    }
}

/// The plain run and these segment counts; all powers of two below the number of stages where none are given, unless
/// budgets are.
pub fn uniform(asked: &[usize], stages: usize, budgets_asked: bool) -> Vec<Point> {
    let mut counts = asked.to_vec();
    if asked.is_empty() && !budgets_asked {
        counts = usual_segments(stages);
        counts.retain(|&count| count < stages);
    }
    counts.sort_unstable();
    counts.dedup();
    counts.retain(|&count| count > 1);
    let segments = counts.into_iter().map(Point::Segments);
    std::iter::once(Point::Plain).chain(segments).collect()
}

/// Budgets evenly spread from the smallest that works to just below the plain run's peak.
pub fn budgets(smallest: Bytes, plain: Bytes) -> Vec<Bytes> {
    let span = plain.0.saturating_sub(smallest.0);
    let unit = (smallest.0.max(1).ilog2()).saturating_sub(PARTS.ilog2());
    let mut budgets: Vec<Bytes> = (0..BUDGETS as u64)
        .map(|part| {
            Bytes(((smallest.0 + span / BUDGETS as u64 * part) >> unit).saturating_add(1) << unit)
        })
        .collect();
    budgets.dedup();
    budgets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_counts_are_powers_of_two_unless_a_list_is_given() {
        use Point::{Plain, Segments};

        let powers = [Plain, Segments(2), Segments(4), Segments(8), Segments(16)];
        assert_eq!(uniform(&[], 16, false), powers[..4]);
        assert_eq!(uniform(&[], 17, false), powers);
        assert_eq!(uniform(&[], 17, true), [Plain]);
        let asked = [Plain, Segments(3), Segments(8)];
        assert_eq!(uniform(&[8, 1, 3, 8], 17, true), asked);
    }

    #[test]
    fn budgets_lie_between_the_smallest_and_the_plain_runs() {
        let mib = |count: u64| Bytes(count << 20);
        assert_eq!(
            budgets(mib(64), mib(114)),
            [65, 75, 85, 95, 105].map(mib),
            "each rounded up past a multiple of 1 MiB"
        );
        assert_eq!(budgets(mib(64), mib(10)), [mib(65)], "nothing lies between");
    }
}
