//! Where the row of each window begins and ends, known before its times.
//!
//! ```text
//! first(s,t)     = min( min over s<j<=t of max( null(s,j,t), x_j + first(j,t), G(j-1) - G(t) + first(s,j-1) ),
//!                       min over ways of max( all(s,t), X_{s+1} + first(s+1,t) ) )
//! saturated(s,t) = max( all(s,t), X_{s+1} + saturated(s+1,t) )      the least over the fastest ways to record s
//! ```
//! Below `first` nothing is feasible; from `saturated` on the time is the least one, nothing recomputed. Cost: O(n^3) time
//! with early ends, O(n^2) bytes.

use rayon::prelude::*;

use super::super::windows::Windows;
use super::costs::Costs;
use super::time::Time;

/// The ends of one window's row.
#[derive(Clone, Copy)]
pub(super) struct Outline<T> {
    first: u32,
    saturated: u32,
    /// The time from `saturated` on.
    pub(super) least: T,
}

impl<T> Outline<T> {
    /// The first feasible slot; beyond the table where there is none.
    #[inline]
    pub(super) fn first(&self) -> usize {
        self.first as usize
    }

    /// From this slot on the time is `least`.
    #[inline]
    pub(super) fn saturated(&self) -> usize {
        self.saturated as usize
    }

    /// The slots from the first feasible one to the saturated one, or to the end of the table.
    #[inline]
    pub(super) fn falling(&self) -> usize {
        self.saturated() - self.first()
    }
}

/// The outlines of all windows.
pub(super) struct Outlines<T> {
    n: usize,
    /// `by_start[s * n + t]` and `by_end[t * n + s]`: twice, so that a loop over either end runs along memory.
    by_start: Vec<Outline<T>>,
    by_end: Vec<Outline<T>>,
}

impl<T: Time> Outlines<T> {
    pub(super) fn new(costs: &Costs<'_>, windows: &Windows) -> Outlines<T> {
        let n = costs.len();
        let unknown = Outline {
            first: u32::MAX,
            saturated: u32::MAX,
            least: T::INFINITY,
        };
        let mut outlines = Outlines {
            n,
            by_start: vec![unknown; n * n],
            by_end: vec![unknown; n * n],
        };
        for length in 0..n {
            let representatives = windows.representatives(length);
            let found: Vec<Outline<T>> = representatives
                .par_iter()
                .with_min_len(16)
                .map(|&s| outlines.find(costs, s, s + length))
                .collect();
            let base = windows.of(representatives[0], representatives[0] + length);
            for s in 0..n - length {
                let t = s + length;
                let outline = found[windows.of(s, t) - base];
                outlines.by_start[s * n + t] = outline;
                outlines.by_end[t * n + s] = outline;
            }
        }
        outlines
    }

    /// The outline of s..t, for a loop over t.
    #[inline]
    pub(super) fn of(&self, s: usize, t: usize) -> &Outline<T> {
        &self.by_start[s * self.n + t]
    }

    /// The same, for a loop over s.
    #[inline]
    pub(super) fn of_ending(&self, s: usize, t: usize) -> &Outline<T> {
        &self.by_end[t * self.n + s]
    }

    fn find(&self, costs: &Costs<'_>, s: usize, t: usize) -> Outline<T> {
        let inside = (s < t).then(|| self.of(s + 1, t));
        let fastest = costs
            .ways::<T>(s, t)
            .map(|way| way.time)
            .fold(T::INFINITY, T::least);
        let (mut first, mut saturated) = (costs.beyond(), costs.beyond());
        for way in costs.ways::<T>(s, t) {
            let from = |slot: usize| way.all.max(way.saved + slot);
            first = first.min(inside.map_or(way.all, |row| from(row.first())));
            if way.time == fastest {
                saturated = saturated.min(inside.map_or(way.all, |row| from(row.saturated())));
            }
        }
        let mut sweep_bytes = 0;
        let mut null = 0;
        for j in s + 1..=t {
            if costs.sweep_bytes(s, j) != sweep_bytes {
                sweep_bytes = costs.sweep_bytes(s, j);
                null = costs.null(t, sweep_bytes);
                // It only grows with j.
                if null >= first {
                    break;
                }
            }
            let right = costs.stored(j) + self.of_ending(j, t).first();
            let left = costs.grads(j, t) + self.of(s, j - 1).first();
            first = first.min(null.max(right).max(left));
        }
        Outline {
            first: first as u32,
            saturated: saturated as u32,
            least: inside.map_or(fastest, |row| fastest + row.least),
        }
    }
}
