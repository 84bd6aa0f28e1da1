//! Windows that are solved together, because they read the same rows.
//!
//! The windows of lengths l..l+B-1 need, but for 2 (B-1) of their splits each, only rows of windows shorter than l. Those
//! splits can be taken in any order, so a tile of windows with neighbouring s takes them split by split: the left row of
//! s..j-1 serves all windows of the tile that begin at s, the right row of j..t all that end at t. A row is read from
//! memory once for a tile, not once for a window.

use pulp::Arch;

use super::super::windows::Windows;
use super::costs::Costs;
use super::outline::Outlines;
use super::relax::{Row, relax, relax_both, relax_constant};
use super::time::Time;

/// Slots that are looked at together.
const BLOCK: usize = 64;

/// The rows that are finished, by class, and all that is needed for more of them.
pub(super) struct Rows<'a, T> {
    pub(super) costs: Costs<'a>,
    pub(super) windows: Windows,
    pub(super) outlines: Outlines<T>,
    pub(super) times: Vec<Vec<T>>,
}

/// A window whose row is being solved: every time in it is that of some schedule.
pub(super) struct Open<T> {
    pub(super) s: usize,
    pub(super) t: usize,
    first: usize,
    /// From this slot on no split that is still to come is an improvement.
    end: usize,
    /// The last sweep and its null(s,j,t) - G(t).
    sweep_bytes: u64,
    null: usize,
    times: Vec<T>,
}

impl<T: Time> Rows<'_, T> {
    /// The row of s..t, for a loop over t.
    #[inline]
    pub(super) fn of(&self, s: usize, t: usize) -> Row<'_, T> {
        Row {
            outline: self.outlines.of(s, t),
            times: &self.times[self.windows.of(s, t)],
        }
    }

    /// The same, for a loop over s.
    #[inline]
    fn of_ending(&self, s: usize, t: usize) -> Row<'_, T> {
        Row {
            outline: self.outlines.of_ending(s, t),
            times: &self.times[self.windows.of_ending(s, t)],
        }
    }

    /// Takes every split of the windows, given by (s, t), whose two parts are shorter than `length`. No window is itself
    /// shorter.
    pub(super) fn open_tile(&self, tile: &[(usize, usize)], length: usize) -> Vec<Open<T>> {
        let mut tile: Vec<Open<T>> = tile
            .iter()
            .map(|&(s, t)| self.open(s, t, self.seed(s, t, length)))
            .collect();
        let earliest = tile.iter().map(|open| open.s + 1).min().unwrap_or(0);
        let latest = tile.iter().map(|open| open.s + length).max().unwrap_or(0);
        Arch::new().dispatch(
            #[inline(always)]
            || {
                for j in earliest..=latest {
                    for open in &mut tile {
                        if open.t < j + length && j <= open.s + length {
                            self.split(open, j);
                        }
                    }
                }
            },
        );
        tile
    }

    /// Takes what [`Rows::open_tile`] with the same `length` has left.
    pub(super) fn close(&self, mut open: Open<T>, length: usize) -> Vec<T> {
        let (s, t) = (open.s, open.t);
        let inside = (s < t).then(|| self.of(s + 1, t));
        self.record(&mut open.times, s, t, inside);
        open.end = open.first + open.times.len();
        Arch::new().dispatch(
            #[inline(always)]
            || {
                for j in (s + 1..=t).filter(|&j| t >= j + length || j > s + length) {
                    self.split(&mut open, j);
                }
            },
        );
        open.times
    }

    fn open(&self, s: usize, t: usize, times: Vec<T>) -> Open<T> {
        let first = self.outlines.of(s, t).first();
        Open {
            s,
            t,
            first,
            end: first + times.len(),
            sweep_bytes: 0,
            null: 0,
            times,
        }
    }

    /// The times of s..t without its splits and those of the windows inside from `length` on: stages recorded one after
    /// the other down to a finished row. Nearly always the best, it makes most splits easy to dismiss.
    fn seed(&self, s: usize, t: usize, length: usize) -> Vec<T> {
        let mut times = vec![T::INFINITY; self.outlines.of(s, t).slots()];
        if s < t {
            let inside = if t - s <= length {
                self.of(s + 1, t)
            } else {
                Row {
                    outline: self.outlines.of(s + 1, t),
                    times: &self.seed(s + 1, t, length),
                }
            };
            self.record(&mut times, s, t, Some(inside));
        }
        times
    }

    /// The schedules that record s first.
    fn record(&self, times: &mut [T], s: usize, t: usize, inside: Option<Row<'_, T>>) {
        let outline = self.outlines.of(s, t);
        let (first, end) = (outline.first(), outline.saturated());
        for way in self.costs.ways::<T>(s, t) {
            let least = inside.map_or(0, |row| way.saved + row.outline.first());
            let start = way.all.max(least).max(first);
            if start >= end {
                continue;
            }
            let times = &mut times[start - first..];
            match inside {
                Some(row) => relax(times, start, way.time, (row, way.saved)),
                None => relax_constant(times, way.time),
            }
        }
    }

    /// The schedules that store a_j first, but only for the blocks of slots in which they may be an improvement: times
    /// fall with the slots, so a split gains nothing in a block when its time at the end is no better than the best so
    /// far at the start.
    #[inline(always)]
    fn split(&self, open: &mut Open<T>, j: usize) {
        let (s, t, first) = (open.s, open.t, open.first);
        let sweep_bytes = self.costs.sweep_bytes(s, j);
        if sweep_bytes != open.sweep_bytes {
            open.sweep_bytes = sweep_bytes;
            open.null = self.costs.null(t, sweep_bytes);
        }
        let (right, left) = (self.of_ending(j, t), self.of(s, j - 1));
        let (shift, grads) = (self.costs.stored(j), self.costs.grads(j, t));
        let sweep = self.costs.sweep::<T>(s, j);
        let bound = sweep + right.outline.least + left.outline.least;
        while open.end > first && open.times[open.end - 1 - first] <= bound {
            open.end -= 1;
        }
        let parts = (shift + right.outline.first()).max(grads + left.outline.first());
        let mut from = open.null.max(parts);
        let mut gaining = from;
        while from < open.end {
            let to = (from + BLOCK).min(open.end);
            let at_end = sweep + right.at(to - 1 - shift) + left.at(to - 1 - grads);
            let gains = at_end < open.times[from - first];
            let close = if gains { to } else { from };
            if (!gains || to == open.end) && gaining < close {
                let times = &mut open.times[gaining - first..close - first];
                relax_both(times, gaining, sweep, (right, shift), (left, grads));
            }
            if !gains {
                gaining = to;
            }
            from = to;
        }
    }
}
