//! `segments`: segments of the chain, one or more, each kept as its input and run again as a whole, but the last.
//!
//! A given number is cut by bytes: where the peak is smallest. Let S(s, t) be what the tracked forwards and the backward pass of
//! the stages s..t take, and A(k, t) the bytes of the inputs of k segments that end at t. Fewer of these are better for all that
//! follows, so within a peak P
//! ```text
//! A(k, t) = min over s of A(k - 1, s) + x_s   where A(k - 1, s) + x_s + S(s, t) <= P
//! ```
//! and P is found by bisection, to a millionth of the plain peak. Of the cuts within it, that with the longest last segment runs
//! least again. Cost of each P: O(n) for each stage of the longest segments within it.
//!
//! Without a number, several are tried, of equal length, like torch's `checkpoint_sequential`, except that sizes differ by at
//! most one (torch puts the whole remainder into the last segment); the longer segments come last, where nothing is recomputed.
//! All numbers of a short chain are tried; of a long one all small ones, then ever fewer, so that some million stages are
//! simulated at most.

use std::iter::successors;

use super::terms::Terms;

/// The most stages of the schedules of all small numbers together, each counted once.
const SMALL_NUMBERS: usize = 400_000;

/// Where the second and later of so many segments start. Their sizes differ by at most one; the last is not recomputed.
pub(super) fn equal(stages: usize, segments: usize) -> Vec<usize> {
    // floor(k n / K): neighbours differ by floor(n / K) or one more, and the last takes the larger one.
    (1..segments).map(|k| k * stages / segments).collect()
}

/// Where the second and later of so many segments start, cut by bytes.
pub(super) fn leanest(terms: &Terms, segments: usize) -> Vec<usize> {
    let whole = terms.whole();
    let (mut low, mut high) = (0, whole);
    let Some(mut best) = within(terms, segments, whole) else {
        return equal(terms.loss(), segments);
    };
    while high - low > 1 + (whole >> 20) {
        let middle = low + (high - low) / 2;
        match within(terms, segments, middle) {
            Some(starts) => (best, high) = (starts, middle),
            None => low = middle,
        }
    }
    best
}

/// The cut into so many segments within a peak.
fn within(terms: &Terms, segments: usize, peak: u64) -> Option<Vec<usize>> {
    const NONE: u64 = u64::MAX;
    let stages = terms.loss();
    let mut inputs = vec![NONE; stages + 1];
    inputs[0] = 0;
    let mut cuts: Vec<Vec<u32>> = Vec::with_capacity(segments);
    for count in 1..=segments {
        let last = count == segments;
        let mut now = vec![NONE; stages + 1];
        let mut cut = vec![0; stages + 1];
        // Each segment has a stage.
        let ends = match last {
            true => stages..=stages,
            false => count..=stages - (segments - count),
        };
        for end in ends {
            // The loss belongs to the last segment.
            let top = if last { end } else { end - 1 };
            for (start, takes) in ending(terms, top).take_while(|(_, takes)| *takes <= peak) {
                let input = if start == 0 { 0 } else { terms.x[start] };
                let held = inputs[start].saturating_add(input);
                if held.saturating_add(takes) <= peak && (last || held < now[end]) {
                    (now[end], cut[end]) = (held, start as u32);
                }
            }
        }
        inputs = now;
        cuts.push(cut);
    }
    if inputs[stages] == NONE {
        return None;
    }
    let mut end = stages;
    let mut starts = Vec::with_capacity(segments);
    for cut in cuts.iter().rev() {
        end = cut[end] as usize;
        starts.push(end);
    }
    starts.pop();
    starts.reverse();
    Some(starts)
}

/// The first stage of each segment with this last one, the shortest segment first, and what it takes beside the inputs.
fn ending(terms: &Terms, top: usize) -> impl Iterator<Item = (usize, u64)> {
    let mut takes = 0;
    (0..=top).rev().map(move |start| {
        takes = terms
            .all(start, top)
            .max(terms.nodes[start].saved_bytes.0 + takes);
        (start, takes + terms.later_grads[top])
    })
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
    use super::{equal, numbers};
    use crate::schedule::{segments, single_level, written};

    #[test]
    fn sizes_differ_by_at_most_one() {
        for stages in 1..40 {
            for count in 1..=stages {
                let found = segments(&single_level(stages, &equal(stages, count))).unwrap();
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
            written(&single_level(3, &equal(3, 2))).join(", "),
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
