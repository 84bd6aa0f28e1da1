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
use crate::schedule::Schedule;

/// The most stages of the schedules of all small numbers together, each counted once.
const SMALL_NUMBERS: usize = 400_000;

/// So many segments. Their sizes differ by at most one; the last is not recomputed.
pub(super) fn equal(stages: usize, segments: usize) -> Schedule {
    // floor(k n / K): neighbours differ by floor(n / K) or one more, and the last takes the larger one.
    let ends: Vec<usize> = (1..=segments).map(|k| k * stages / segments).collect();
    Schedule::of_segments(&ends)
}

/// So many segments, cut by bytes; `None` where none is within the plain peak.
pub(super) fn leanest(terms: &Terms, segments: usize) -> Option<Schedule> {
    let whole = terms.whole();
    let (mut low, mut high) = (0, whole);
    let mut best = within(terms, segments, whole)?;
    while high - low > 1 + (whole >> 20) {
        let middle = low + (high - low) / 2;
        match within(terms, segments, middle) {
            Some(segments) => (best, high) = (segments, middle),
            None => low = middle,
        }
    }
    Some(best)
}

/// The cut into so many segments within a peak.
fn within(terms: &Terms, segments: usize, peak: u64) -> Option<Schedule> {
    const NONE: u64 = u64::MAX;
    // The loss belongs to the last segment.
    let (stages, all) = (terms.loss(), terms.nodes.len());
    // A(k, t) + x_t for each stage t, of no segment at first.
    let mut held = vec![NONE; all + 1];
    held[0] = 0;
    let mut cuts: Vec<Vec<u32>> = Vec::with_capacity(segments);
    for count in 1..=segments {
        let last = count == segments;
        let mut now = vec![NONE; all + 1];
        let mut cut = vec![0; all + 1];
        // Each segment has a stage.
        let ends = match last {
            true => all..=all,
            false => count..=stages - (segments - count),
        };
        for end in ends {
            let recorded = terms.recorded(end - 1);
            let grads = terms.later_grads[end - 1];
            for (start, takes) in recorded.take_while(|(_, takes)| takes + grads <= peak) {
                let fits = held[start].saturating_add(takes + grads) <= peak;
                if fits && (last || held[start] < now[end]) {
                    (now[end], cut[end]) = (held[start], start as u32);
                }
            }
            now[end] = now[end].saturating_add(terms.x[end]);
        }
        held = now;
        cuts.push(cut);
    }
    if held[all] == NONE {
        return None;
    }
    let (mut start, mut ends) = (all, vec![stages]);
    for cut in cuts[1..].iter().rev() {
        start = cut[start] as usize;
        ends.push(start);
    }
    ends.reverse();
    Some(Schedule::of_segments(&ends))
}

/// Equal segments, in all numbers that are tried, from 1 to `stages`: small ones one by one, large ones at about equal ratios.
pub(super) fn several(stages: usize) -> Vec<Schedule> {
    let most = stages.max(1);
    let small = (SMALL_NUMBERS / most).max(1);
    let numbers = successors(Some(1), |number| Some(number + 1 + number / small));
    let numbers = numbers.take_while(|&number| number < most).chain([most]);
    numbers.map(|number| equal(stages, number)).collect()
}
