//! `uniform`: segments of equal length.
//!
//! Like torch's `checkpoint_sequential`, except that sizes differ by at most one (torch puts the whole remainder into
//! the last segment); the longer segments come last, where nothing is recomputed. It does not take bytes and seconds
//! into account, so it is best only for equal stages. Cost: O(stages).

use super::{PlanError, single_level};
use crate::schedule::Schedule;

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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::uniform;
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
        let text: Vec<String> = uniform(3, 2)
            .unwrap()
            .actions()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            text.join(", "),
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
}
