//! Windows that are solved together, because they read the same rows.
//!
//! The windows of lengths l..l+B-1 need, but for 2 (B-1) of their splits each, only rows of windows shorter than l. Those
//! splits can be taken in any order, so a tile of windows with neighbouring s takes them split by split: the left row of
//! s..j-1 serves all windows of the tile that begin at s, the right row of j..t all that end at t. A row is read from
//! memory once for a tile, not once for a window.

use std::ops::Range;
use std::slice;

use pulp::{Arch, Simd, WithSimd};

use super::super::windows::Windows;
use super::costs::Costs;
use super::outline::Outlines;
use super::relax::{Row, relax, relax_both, relax_constant, unknown_times};
use super::time::Time;

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
    /// The splits to take next.
    splits: Range<usize>,
    times: Vec<T>,
}

/// The work that is compiled for each kind of machine: all splits of the windows of a tile.
struct Splits<'a, 'b, T> {
    rows: &'a Rows<'b, T>,
    tile: &'a mut [Open<T>],
}

impl<T: Time> WithSimd for Splits<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let earliest = self.tile.iter().map(|open| open.splits.start).min();
        let latest = self.tile.iter().map(|open| open.splits.end).max();
        for j in earliest.unwrap_or(0)..latest.unwrap_or(0) {
            for open in self.tile.iter_mut() {
                if open.splits.contains(&j) {
                    self.rows.split(simd, open, j);
                }
            }
        }
    }
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
        for open in &mut tile {
            open.splits = open.t + 1 - length..open.s + length + 1;
        }
        self.take_splits(&mut tile);
        tile
    }

    /// Takes what [`Rows::open_tile`] with the same `length` has left.
    pub(super) fn close(&self, mut open: Open<T>, length: usize) -> Vec<T> {
        let (s, t) = (open.s, open.t);
        let inside = (s < t).then(|| self.of(s + 1, t));
        self.record(&mut open.times, s, t, inside);
        open.end = self.outlines.of(s, t).saturated();
        let long_right = s + 1..(t + 1).saturating_sub(length);
        let long_left = long_right.end.max(s + length + 1)..t + 1;
        for splits in [long_right, long_left] {
            open.splits = splits;
            self.take_splits(slice::from_mut(&mut open));
        }
        open.times
    }

    fn take_splits(&self, tile: &mut [Open<T>]) {
        Arch::new().dispatch(Splits { rows: self, tile });
    }

    fn open(&self, s: usize, t: usize, times: Vec<T>) -> Open<T> {
        let first = self.outlines.of(s, t).first();
        Open {
            s,
            t,
            first,
            end: self.outlines.of(s, t).saturated(),
            splits: 0..0,
            sweep_bytes: 0,
            null: 0,
            times,
        }
    }

    /// The times of s..t without its splits and those of the windows inside from `length` on: stages recorded one after
    /// the other down to a finished row. Nearly always the best, it makes most splits easy to dismiss.
    fn seed(&self, s: usize, t: usize, length: usize) -> Vec<T> {
        let mut times = unknown_times(self.outlines.of(s, t));
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
            let times = &mut times[start - first..end - first];
            match inside {
                Some(row) => relax(times, way.time, (row, start - way.saved)),
                None => relax_constant(times, way.time),
            }
        }
    }

    /// The schedules that store a_j first.
    #[inline(always)]
    fn split<S: Simd>(&self, simd: S, open: &mut Open<T>, j: usize) {
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
        let start = open.null.max(parts);
        if start < open.end {
            let times = &mut open.times[start - first..];
            let (right, left) = ((right, start - shift), (left, start - grads));
            relax_both(simd, (times, open.end - start), sweep, right, left);
        }
    }
}
