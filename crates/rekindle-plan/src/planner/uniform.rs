//! `none` and `segments`: segments of equal length, one or more.
//!
//! Like torch's `checkpoint_sequential`, except that sizes differ by at most one (torch puts the whole remainder into
//! the last segment); the longer segments come last, where nothing is recomputed. Their lengths do not depend on bytes
//! and seconds, so they are best only for equal stages.
//!
//! Without a number, several are tried. While schedules are compared, at most one per thread is in memory: only the
//! peak and time of each are kept, and the chosen ones are made again. Up to [`ALL_NUMBERS`] stages every number is
//! tried; beyond that, all small ones and some of the large ones. So the cost is O(stages) schedules for short chains
//! and O(1) schedules for long ones, each of length O(stages).

use rayon::prelude::*;

use super::source::PlanSource;
use super::{MOST_STAGES, PlanError, check_length, single_level};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::plan::{Plan, keep_useful};
use crate::request::Planner;
use crate::schedule::Schedule;
use crate::seconds::Seconds;
use crate::simulator::simulate;

/// Up to this many numbers, all are tried.
const ALL_NUMBERS: usize = 1_000;

/// Maximum number of actions in all schedules of a frontier: about 500 MB.
const MOST_ACTIONS_TOGETHER: usize = 20_000_000;

/// The schedule that keeps everything, the plain training step: all stages are one segment.
///
/// # Errors
/// [`PlanError::NoStages`] for zero stages.
pub fn none(stages: usize) -> Result<Schedule, PlanError> {
    single_level(stages, &[])
}

/// The schedule with the given number of segments, of sizes that differ by at most one; the last is not recomputed.
///
/// # Errors
/// [`PlanError::NoStages`] for zero stages, [`PlanError::Segments`] for zero segments or more than stages.
pub fn uniform(stages: usize, segments: usize) -> Result<Schedule, PlanError> {
    if stages == 0 {
        return Err(PlanError::NoStages);
    }
    if segments == 0 || segments > stages {
        return Err(PlanError::Segments { segments, stages });
    }
    // floor(k n / K): neighbours differ by floor(n / K) or one more, and the last takes the larger one.
    let starts: Vec<usize> = (1..segments).map(|k| k * stages / segments).collect();
    single_level(stages, &starts)
}

/// The schedules of `none` or `segments`, by the number of segments.
pub(crate) struct EqualSegments<'a> {
    chain: &'a Chain,
    planner: Planner,
    /// The number of segments, peak and time of each.
    members: Vec<(usize, Bytes, Seconds)>,
}

impl<'a> EqualSegments<'a> {
    pub(crate) fn new(chain: &'a Chain, planner: Planner) -> Result<EqualSegments<'a>, PlanError> {
        let stages = chain.stages.len();
        let numbers = match planner {
            Planner::Segments(Some(segments)) => vec![segments],
            Planner::Segments(None) => {
                check_length(planner, stages, MOST_STAGES)?;
                numbers(stages)
            }
            _ => vec![1],
        };
        let member = |&number: &usize| {
            let run = simulate(chain, &uniform(stages, number)?);
            Ok((number, run.peak, run.time))
        };
        let members: Result<_, PlanError> = numbers.par_iter().map(member).collect();
        Ok(EqualSegments {
            chain,
            planner,
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

    fn plan(&self, segments: usize) -> Result<Plan, PlanError> {
        let schedule = uniform(self.chain.stages.len(), segments)?;
        let source = PlanSource::Uniform { segments };
        Ok(Plan::new(self.chain, self.planner, schedule, source))
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
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::{ALL_NUMBERS, numbers, uniform};
    use crate::planner::PlanError;

    #[test]
    fn sizes_differ_by_at_most_one() {
        for stages in 1..40 {
            for segments in 1..=stages {
                let found = uniform(stages, segments).unwrap().segments().unwrap();
                let sizes: Vec<usize> = found
                    .iter()
                    .map(|(first, last)| last.0 - first.0 + 1)
                    .collect();
                assert_eq!(sizes.len(), segments);
                assert_eq!(sizes.iter().sum::<usize>(), stages);
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                assert_eq!(sizes.last(), sizes.iter().max());
            }
        }
    }

    #[test]
    fn two_segments_of_three_stages() {
        assert_eq!(
            uniform(3, 2).unwrap().written().join(", "),
            "forward_keep 0, forward_tracked 1, forward_tracked 2, loss, backward 2, backward 1, \
             forward_tracked 0, backward 0, optimize"
        );
    }

    #[test]
    fn the_number_of_segments_is_checked() {
        assert_eq!(
            uniform(3, 0),
            Err(PlanError::Segments {
                segments: 0,
                stages: 3
            })
        );
        assert_eq!(
            uniform(3, 4),
            Err(PlanError::Segments {
                segments: 4,
                stages: 3
            })
        );
        assert_eq!(uniform(0, 1), Err(PlanError::NoStages));
    }

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
