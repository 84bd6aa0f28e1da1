//! The smallest peak of any persistent schedule, in exact bytes.
//!
//! ```text
//! P(s,s) = all(s,s)
//! P(s,t) = min( min over s<j<=t of max( null(s,j,t), x_j + P(j,t), P(s,j-1) ), max( all(s,t), X_{s+1} + P(s+1,t) ) )
//! ```
//! The recurrence is the memory half of the program of Beaumont et al. (INRIA RR-9302, ACM TOMS 50(2) 2024), with
//! parameter gradients added; recomputing everything is not always the smallest, since a recorded stage may be smaller
//! than the forwards that would come between. Cost: O(n^3) time in parallel diagonals, equal windows once, O(n^2) bytes.
//! Optimal among persistent schedules.

use rayon::prelude::*;

use super::persistent::{Choice, emit};
use super::terms::Terms;
use super::windows::Windows;
use super::{MOST_STAGES_OF_WINDOWS, PlanError, check_length};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::request::Planner;
use crate::schedule::Schedule;

/// The smallest budget that a persistent schedule can meet, and that schedule. The budget counts everything: the bytes
/// that are always held, and the optimizer's peak, which no schedule lowers.
///
/// # Errors
/// The chain does not validate, or is too long to examine all its windows.
pub fn smallest_peak(chain: &Chain) -> Result<(Bytes, Schedule), PlanError> {
    chain.validate()?;
    check_length(Planner::Optimal, chain.stages.len(), MOST_STAGES_OF_WINDOWS)?;
    let terms = Terms::new(chain);
    Ok(SmallestPeaks::new(&terms).whole(&terms, chain))
}

/// P of every window, each less its G(t).
pub(crate) struct SmallestPeaks {
    pub(crate) windows: Windows,
    /// P(s,t) - G(t) of every class of windows.
    pub(crate) peaks: Vec<u64>,
}

impl SmallestPeaks {
    pub(crate) fn new(terms: &Terms) -> SmallestPeaks {
        let windows = Windows::new(terms);
        let mut peaks = SmallestPeaks {
            windows,
            peaks: Vec::new(),
        };
        for length in 0..peaks.windows.len() {
            let representatives = peaks
                .windows
                .representatives(length)
                .par_iter()
                .with_min_len(16);
            let diagonal: Vec<u64> = representatives
                .map(|&s| peaks.best(terms, s, s + length).0)
                .collect();
            peaks.peaks.extend(diagonal);
        }
        peaks
    }

    /// The smallest budget for the whole chain, and a schedule that meets it.
    pub(crate) fn whole(&self, terms: &Terms, chain: &Chain) -> (Bytes, Schedule) {
        let loss = terms.loss();
        let schedule = emit(loss, (), |s, t, ()| self.best(terms, s, t).1);
        let peak = chain.resident_bytes() + Bytes(self.peaks[self.windows.of(0, loss)]);
        (peak.max(chain.optimizer_peak()), schedule)
    }

    /// P(s,t) - G(t) and the choice that attains it, from the shorter windows.
    fn best(&self, terms: &Terms, s: usize, t: usize) -> (u64, Choice<()>) {
        let inside = if s < t {
            terms.nodes[s].saved + self.peaks[self.windows.of(s + 1, t)]
        } else {
            0
        };
        let mut best = terms.all(s, t).max(inside);
        let mut choice = Choice::Track { rest: () };
        let mut forwards = terms.forward_peak(s, true);
        for j in s + 1..=t {
            let null = terms.y[t + 1] + forwards;
            // null only grows with j.
            if null >= best {
                break;
            }
            // P(s,j-1) with its own gradients, which are G(j-1) - G(t) more than this window starts with.
            let grads = terms.later_grads[j - 1] - terms.later_grads[t];
            let right = terms.x[j] + self.peaks[self.windows.of_ending(j, t)];
            let left = grads + self.peaks[self.windows.of(s, j - 1)];
            let peak = null.max(right).max(left);
            if peak < best {
                best = peak;
                choice = Choice::Split {
                    j,
                    right: (),
                    left: (),
                };
            }
            forwards = forwards.max(terms.forward_peak(j, false));
        }
        (best, choice)
    }
}
