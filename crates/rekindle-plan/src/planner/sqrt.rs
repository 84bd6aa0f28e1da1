//! `sqrt`: about the square root of n segments, cut by bytes.
//!
//! Chen et al. 2016 (arXiv 1604.06174): n equal layers in K segments keep K boundaries and n / K layers, with the
//! minimum at K = sqrt(n), for one extra forward. Their algorithm 3 cuts where the bytes since the last cut exceed a
//! limit, and searches the limit around its balanced value. Here K is searched from half to twice sqrt(n), with cuts
//! where the saved bytes exceed the next multiple of 1/K of their sum. Cost: O(n sqrt(n)). The result is close to the
//! smallest single-level peak when stages are similar; `segments` is exact.

use std::ops::RangeInclusive;

use super::{PlanError, single_level};
use crate::chain::Chain;
use crate::schedule::Schedule;

/// The numbers of segments that are tried.
pub(super) fn counts(stages: usize) -> RangeInclusive<usize> {
    let root = (stages as f64).sqrt();
    let fewest = ((root / 2.0).floor() as usize).max(1);
    let most = ((root * 2.0).ceil() as usize).min(stages);
    fewest..=most
}

/// The schedule with this many segments.
pub(super) fn cut(chain: &Chain, segments: usize) -> Result<Schedule, PlanError> {
    single_level(chain.stages.len(), &starts(chain, segments))
}

/// The first stages of the second and later of `segments` segments of about equal saved bytes, none of them empty.
fn starts(chain: &Chain, segments: usize) -> Vec<usize> {
    let stages = chain.stages.len();
    let total: u128 = chain
        .stages
        .iter()
        .map(|stage| u128::from(stage.saved_bytes.0))
        .sum();
    let mut starts: Vec<usize> = Vec::with_capacity(segments - 1);
    let (mut saved, mut next) = (0_u128, 0);
    for k in 1..segments {
        while next < stages
            && (saved + u128::from(chain.stages[next].saved_bytes.0)) * segments as u128
                <= k as u128 * total
        {
            saved += u128::from(chain.stages[next].saved_bytes.0);
            next += 1;
        }
        // Leave at least one stage for the segments before and after this cut.
        let after_previous = starts.last().map_or(1, |previous| previous + 1);
        starts.push(next.clamp(after_previous, stages - (segments - k)));
    }
    starts
}
