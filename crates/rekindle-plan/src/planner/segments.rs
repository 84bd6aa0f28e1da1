//! `segments`: the best single-level schedule that fits a budget.
//!
//! Among all ways to cut the chain into segments of which all but the last are recomputed once, this chooses the least
//! time that fits, then the fewest segments; `cuts.rs` has the algorithm. It works in exact bytes, and is optimal among
//! single-level schedules that record each stage by the default alternative. The problem goes back to Chen et al. 2016
//! (arXiv 1604.06174), who solve it with a greedy pass.

use super::cuts::Cuts;
use super::kind::PlannerKind;
use super::length::{MOST_STAGES, check_length};
use super::{PlanError, single_level};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::schedule::Schedule;

/// Maximum of stages * segments if the number of segments is given: the stored cuts take about 500 MB.
const MOST_CUTS: usize = 20_000_000;

/// The fastest single-level schedule within `budget` (everything counted), with the fewest segments among equals; or
/// with exactly `count` segments if that is given. `None` if nothing fits.
///
/// # Errors
/// The chain does not validate or is too long, or `count` is zero or more than the number of stages.
pub fn segments(
    chain: &Chain,
    budget: Bytes,
    count: Option<usize>,
) -> Result<Option<Schedule>, PlanError> {
    check(chain, count)?;
    match Cuts::new(chain).within(budget, count) {
        Some(starts) => Ok(Some(single_level(chain.stages.len(), &starts)?)),
        None => Ok(None),
    }
}

/// The smallest budget that a single-level schedule can meet (with `count` segments, if given).
///
/// Cost: about forty times that of [`segments`].
///
/// # Errors
/// See [`segments`].
pub(crate) fn smallest_segments_peak(
    chain: &Chain,
    count: Option<usize>,
) -> Result<Bytes, PlanError> {
    check(chain, count)?;
    let cuts = Cuts::new(chain);
    // `high` fits: nothing holds more than everything at once, which is below 2^62 in a validated chain.
    let (mut low, mut high) = match count {
        None | Some(1) => (0, cuts.whole().0),
        Some(_) => (0, 1 << 62),
    };
    while low < high {
        let middle = low + (high - low) / 2;
        if cuts.within(Bytes(middle), count).is_some() {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(Bytes(high))
}

fn check(chain: &Chain, count: Option<usize>) -> Result<(), PlanError> {
    chain.validate()?;
    let stages = chain.stages.len();
    let most = match count {
        Some(segments) if segments == 0 || segments > stages => {
            return Err(PlanError::Segments { segments, stages });
        }
        Some(segments) => MOST_STAGES.min(MOST_CUTS / segments),
        None => MOST_STAGES,
    };
    check_length(PlannerKind::Segments, stages, most)
}
