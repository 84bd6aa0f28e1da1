//! Where the row of each window begins and ends, known before its times.
//!
//! ```text
//! first(s,t)     = P(s,t) - G(t)
//! saturated(s,t) = max( all(s,t), X_{s+1} + saturated(s+1,t) )      the least over the fastest ways to record s
//! ```
//! Below the smallest peak nothing is feasible; from `saturated` on the time is the least one, nothing recomputed.
//! Cost: O(n^2) time and bytes.

use std::collections::HashMap;

use super::super::smallest_peak::SmallestPeaks;
use super::costs::{Costs, INFINITE};
use super::mark::Mark;

/// The ends of one window's row.
#[derive(Clone, Copy)]
pub(super) struct Outline {
    /// The least feasible bytes; beyond the table where there are none.
    pub(super) first: Mark,
    /// From here on the time is `least`.
    pub(super) saturated: Mark,
    pub(super) least: u32,
}

/// The outlines of all windows.
pub(super) struct Outlines {
    n: usize,
    /// `by_start[s * n + t]` and `by_end[t * n + s]`: twice, so that a loop over either end runs along memory.
    by_start: Vec<Outline>,
    by_end: Vec<Outline>,
}

impl Outlines {
    pub(super) fn new(costs: &Costs<'_>, peaks: &SmallestPeaks) -> Outlines {
        let n = costs.len();
        let unknown = Outline {
            first: costs.beyond(),
            saturated: costs.beyond(),
            least: INFINITE,
        };
        let mut outlines = Outlines {
            n,
            by_start: vec![unknown; n * n],
            by_end: vec![unknown; n * n],
        };
        for length in 0..n {
            let mut of_class = HashMap::new();
            for s in 0..n - length {
                let t = s + length;
                let class = peaks.windows.of(s, t);
                let outline = *of_class
                    .entry(class)
                    .or_insert_with(|| outlines.find(costs, s, t, peaks.peaks[class]));
                outlines.by_start[s * n + t] = outline;
                outlines.by_end[t * n + s] = outline;
            }
        }
        outlines
    }

    /// The outline of s..t, for a loop over t.
    #[inline]
    pub(super) fn of(&self, s: usize, t: usize) -> &Outline {
        &self.by_start[s * self.n + t]
    }

    /// The same, for a loop over s.
    #[inline]
    pub(super) fn of_ending(&self, s: usize, t: usize) -> &Outline {
        &self.by_end[t * self.n + s]
    }

    fn find(&self, costs: &Costs<'_>, s: usize, t: usize, smallest: u64) -> Outline {
        let inside = (s < t).then(|| self.of(s + 1, t));
        let fastest = costs.ways(s, t).map(|way| way.time).min();
        let fastest = fastest.unwrap_or(INFINITE);
        let mut saturated = costs.beyond();
        for way in costs.ways(s, t).filter(|way| way.time == fastest) {
            let needed = inside.map_or(way.all, |row| {
                way.all.max(way.saved.plus(row.saturated, costs.width))
            });
            saturated = saturated.min(needed);
        }
        let least = inside.map_or(fastest, |row| fastest.saturating_add(row.least));
        Outline {
            first: costs.mark(smallest),
            saturated,
            least: least.min(INFINITE),
        }
    }
}
