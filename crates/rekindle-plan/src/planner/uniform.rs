//! `none` and `segments`: segments of equal length, one or more.
//!
//! Like torch's `checkpoint_sequential`, except that sizes differ by at most one (torch puts the whole remainder into
//! the last segment); the longer segments come last, where nothing is recomputed. Their lengths do not depend on bytes
//! and seconds, so they are best only for equal stages.
//!
//! Without a number, several are tried: all of a short chain; of a long one all small ones, then ever fewer, so that some
//! million stages are simulated at most.

use std::iter::successors;

/// The most stages of the schedules of all small numbers together, each counted once.
const SMALL_NUMBERS: usize = 400_000;

/// Where the second and later of so many segments start. Their sizes differ by at most one; the last is not recomputed.
pub(super) fn starts(stages: usize, segments: usize) -> Vec<usize> {
    // floor(k n / K): neighbours differ by floor(n / K) or one more, and the last takes the larger one.
    (1..segments).map(|k| k * stages / segments).collect()
}

/// The numbers of segments that are tried, from 1 to `stages`: small ones one by one, large ones at about equal ratios.
pub(super) fn numbers(stages: usize) -> Vec<usize> {
    let stages = stages.max(1);
    let small = (SMALL_NUMBERS / stages).max(1);
    let numbers = successors(Some(1), |number| Some(number + 1 + number / small));
    let numbers = numbers.take_while(|&number| number < stages);
    numbers.chain([stages]).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::numbers;
    use crate::planner::Recipe;
    use crate::schedule::{segments, written};

    #[test]
    fn sizes_differ_by_at_most_one() {
        for stages in 1..40 {
            for count in 1..=stages {
                let found = segments(&Recipe::Segments(count).schedule(stages)).unwrap();
                let sizes: Vec<usize> = found
                    .iter()
                    .map(|(first, last)| last.0 - first.0 + 1)
                    .collect();
                assert_eq!(sizes.len(), count);
                assert_eq!(sizes.iter().sum::<usize>(), stages);
                assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                assert_eq!(sizes.last(), sizes.iter().max());
            }
        }
    }

    #[test]
    fn two_segments_of_three_stages() {
        assert_eq!(
            written(&Recipe::Segments(2).schedule(3)).join(", "),
            "forward_keep 0, forward_tracked 1, forward_tracked 2, loss, backward 2, backward 1, \
             forward_tracked 0, backward 0, optimize"
        );
    }

    #[test]
    fn numbers_rise_from_one_to_all() {
        for stages in [1, 2, 999, 1_000, 1_001, 1_500, 10_000, 20_000] {
            let numbers = numbers(stages);
            assert!(numbers.len() * stages <= 4_000_000);
            assert_eq!((numbers[0], numbers[numbers.len() - 1]), (1, stages));
            assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
