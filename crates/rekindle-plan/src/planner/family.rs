//! The planners that make a schedule for each of several numbers (of segments, of snapshots) and choose the best.
//!
//! While schedules are compared, at most one per thread is in memory: only the peak and time of each are kept, and the
//! chosen ones are made again. Up to [`ALL_NUMBERS`] stages every number is tried; beyond that, all small ones and some
//! of the large ones. So the cost is O(stages) schedules for short chains and O(1) schedules for long ones, each of
//! length O(stages) or a little more.

use rayon::prelude::*;

use super::kind::PlannerKind;
use super::length::{MOST_STAGES, check_length};
use super::revolve::can_revolve;
use super::source::PlanSource;
use super::{PlanError, none, revolve, sqrt, uniform};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::plan::{Plan, keep_useful};
use crate::schedule::Schedule;
use crate::seconds::Seconds;
use crate::simulator::simulate;

/// Up to this many numbers, all are tried.
const ALL_NUMBERS: usize = 1_000;

/// Maximum number of actions in all schedules of a frontier: about 500 MB.
const MOST_ACTIONS_TOGETHER: usize = 20_000_000;

/// The schedules of a planner, by number.
pub(crate) struct Family<'a> {
    chain: &'a Chain,
    kind: PlannerKind,
    /// The number, peak and time of each.
    members: Vec<(usize, Bytes, Seconds)>,
}

impl<'a> Family<'a> {
    /// The schedules of `none`, `uniform`, `sqrt` or `revolve`, with the given number of segments, if any.
    pub(crate) fn new(
        chain: &'a Chain,
        kind: PlannerKind,
        segments: Option<usize>,
    ) -> Result<Family<'a>, PlanError> {
        let stages = chain.stages.len();
        let numbers: Vec<usize> = match (kind, segments) {
            (PlannerKind::Uniform, Some(segments)) => vec![segments],
            (PlannerKind::Uniform, None) => numbers(stages),
            (PlannerKind::Sqrt, _) => sqrt::counts(stages).collect(),
            (PlannerKind::Revolve, _) => numbers(stages)
                .into_iter()
                .filter(|&snapshots| can_revolve(stages, snapshots).is_ok())
                .collect(),
            _ => vec![1],
        };
        if numbers.len() > 1 {
            check_length(kind, stages, MOST_STAGES)?;
        }
        let member = |&number: &usize| {
            let run = simulate(chain, &schedule(chain, kind, number)?)?;
            Ok((number, run.peak, run.time))
        };
        let members: Result<_, PlanError> = numbers.par_iter().map(member).collect();
        Ok(Family {
            chain,
            kind,
            members: members?,
        })
    }

    /// The fastest schedule that fits; of equally fast ones, the one with the smallest peak.
    pub(crate) fn within(&self, budget: Bytes) -> Result<Option<Plan>, PlanError> {
        let fitting = self.members.iter().filter(|(_, peak, _)| *peak <= budget);
        let fastest = fitting.min_by(|a, b| a.2.0.total_cmp(&b.2.0).then(a.1.cmp(&b.1)));
        fastest.map(|member| self.plan(member.0)).transpose()
    }

    /// The smallest peak of all schedules.
    pub(crate) fn smallest(&self) -> Bytes {
        let peaks = self.members.iter().map(|&(_, peak, _)| peak);
        peaks.min().unwrap_or(Bytes::MAX)
    }

    /// The memory/time frontier, from the smallest peak to the largest; evenly sampled if all schedules would take too
    /// much memory.
    pub(crate) fn frontier(mut self) -> Result<Vec<Plan>, PlanError> {
        keep_useful(&mut self.members, |&(_, peak, time)| (peak, time));
        let most = (MOST_ACTIONS_TOGETHER / (4 * self.chain.stages.len())).max(2);
        let count = self.members.len();
        let chosen: Vec<usize> = if count <= most {
            (0..count).collect()
        } else {
            (0..most).map(|i| i * (count - 1) / (most - 1)).collect()
        };
        let chosen = chosen.into_iter();
        chosen
            .map(|index| self.plan(self.members[index].0))
            .collect()
    }

    fn plan(&self, number: usize) -> Result<Plan, PlanError> {
        let source = match self.kind {
            PlannerKind::Sqrt => PlanSource::Sqrt,
            PlannerKind::Revolve => PlanSource::Revolve { snapshots: number },
            _ => PlanSource::Uniform { segments: number },
        };
        let schedule = schedule(self.chain, self.kind, number)?;
        Plan::new(self.chain, self.kind, schedule, source)
    }
}

fn schedule(chain: &Chain, kind: PlannerKind, number: usize) -> Result<Schedule, PlanError> {
    let stages = chain.stages.len();
    match kind {
        PlannerKind::Uniform => uniform(stages, number),
        PlannerKind::Sqrt => sqrt::cut(chain, number),
        PlannerKind::Revolve => revolve(stages, number),
        _ => none(stages),
    }
}

/// The numbers from 1 to `stages`; if they are too many, half of the sample consecutive and the rest at equal ratios.
fn numbers(stages: usize) -> Vec<usize> {
    if stages <= ALL_NUMBERS {
        return (1..=stages).collect();
    }
    let small = ALL_NUMBERS / 2;
    let ratio = (stages as f64 / small as f64).powf(1.0 / small as f64);
    let large = (1..small).map(|i| (small as f64 * ratio.powi(i as i32)) as usize);
    let mut numbers: Vec<usize> = (1..=small).chain(large).chain([stages]).collect();
    numbers.dedup();
    numbers
}

#[cfg(test)]
mod tests {
    use super::{ALL_NUMBERS, numbers};

    #[test]
    fn numbers_rise_from_one_to_all() {
        for stages in [1, 2, 999, 1_000, 1_001, 1_500, 10_000, 20_000] {
            let numbers = numbers(stages);
            assert!(numbers.len() <= ALL_NUMBERS);
            assert_eq!((numbers[0], numbers[numbers.len() - 1]), (1, stages));
            assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
