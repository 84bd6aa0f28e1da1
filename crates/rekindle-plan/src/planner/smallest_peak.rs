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
use crate::schedule::Action;

/// P of every window, each less its G(t).
pub(super) struct SmallestPeaks {
    pub(super) windows: Windows,
    /// P(s,t) - G(t) of every class of windows.
    pub(super) peaks: Vec<u64>,
}

impl SmallestPeaks {
    pub(super) fn new(terms: &Terms) -> SmallestPeaks {
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

    /// The smallest peak of the whole chain above the bytes that are always held.
    pub(super) fn whole(&self) -> u64 {
        self.peaks[self.windows.of(0, self.windows.len() - 1)]
    }

    /// A schedule with the smallest peak.
    pub(super) fn schedule(&self, terms: &Terms) -> Vec<Action> {
        emit(terms.loss(), (), |s, t, ()| self.best(terms, s, t).1)
    }

    /// P(s,t) - G(t) and the choice that attains it, from the shorter windows.
    fn best(&self, terms: &Terms, s: usize, t: usize) -> (u64, Choice<()>) {
        let inside = if s < t {
            terms.nodes[s].saved_bytes.0 + self.peaks[self.windows.of(s + 1, t)]
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
