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
use super::mark::Mark;
use super::outline::Outlines;
use super::row::{Cells, Part, Row, relax};

/// The rows that are finished, by class, and all that is needed for more of them.
pub(super) struct Rows<'a> {
    pub(super) costs: Costs<'a>,
    pub(super) windows: &'a Windows,
    pub(super) outlines: Outlines,
    pub(super) cells: Vec<Cells>,
}

/// A window whose row is being solved.
pub(super) struct Open {
    pub(super) s: usize,
    pub(super) t: usize,
    /// From this slot on no split that is still to come is an improvement.
    end: u32,
    /// The last sweep and its null(s,j,t) - G(t).
    sweep_bytes: u64,
    null: Mark,
    /// The splits to take next.
    splits: Range<usize>,
    cells: Cells,
}

/// The work that is compiled for each kind of machine: all splits of the windows of a tile.
struct Splits<'a, 'b> {
    rows: &'a Rows<'b>,
    tile: &'a mut [Open],
}

impl WithSimd for Splits<'_, '_> {
    type Output = ();

    /// The compiler makes the vectors of the plain loops in here, as wide as the machine has them.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let earliest = self.tile.iter().map(|open| open.splits.start).min();
        let latest = self.tile.iter().map(|open| open.splits.end).max();
        for j in earliest.unwrap_or(0)..latest.unwrap_or(0) {
            for open in self.tile.iter_mut() {
                if open.splits.contains(&j) {
                    self.rows.split(open, j);
                }
            }
        }
    }
}

impl Rows<'_> {
    /// The row of s..t, for a loop over t.
    #[inline]
    pub(super) fn of(&self, s: usize, t: usize) -> Row<'_> {
        Row {
            outline: self.outlines.of(s, t),
            cells: &self.cells[self.windows.of(s, t)],
        }
    }

    /// The same, for a loop over s.
    #[inline]
    fn of_ending(&self, s: usize, t: usize) -> Row<'_> {
        Row {
            outline: self.outlines.of_ending(s, t),
            cells: &self.cells[self.windows.of_ending(s, t)],
        }
    }

    /// Takes every split of the windows, given by (s, t), whose two parts are shorter than `length`. No window is itself
    /// shorter.
    pub(super) fn open_tile(&self, tile: &[(usize, usize)], length: usize) -> Vec<Open> {
        let mut tile: Vec<Open> = tile.iter().map(|&(s, t)| self.open(s, t, length)).collect();
        for open in &mut tile {
            open.splits = open.t + 1 - length..open.s + length + 1;
        }
        self.take_splits(&mut tile);
        tile
    }

    /// Takes what [`Rows::open_tile`] with the same `length` has left.
    pub(super) fn close(&self, mut open: Open, length: usize) -> Cells {
        let (s, t) = (open.s, open.t);
        if t - s > length {
            self.record(&mut open.cells, s, t, Some(self.of(s + 1, t)));
        }
        open.end = self.outlines.of(s, t).saturated.slot;
        let long_right = s + 1..(t + 1).saturating_sub(length);
        let long_left = long_right.end.max(s + length + 1)..t + 1;
        for splits in [long_right, long_left] {
            open.splits = splits;
            self.take_splits(slice::from_mut(&mut open));
        }
        open.cells.carry();
        open.cells
    }

    fn take_splits(&self, tile: &mut [Open]) {
        Arch::new().dispatch(Splits { rows: self, tile });
    }

    /// A window in which no split is taken. If the window inside is finished, the schedules that record s are there:
    /// nearly always the best, they make most splits easy to dismiss.
    fn open(&self, s: usize, t: usize, length: usize) -> Open {
        let outline = self.outlines.of(s, t);
        let mut cells = Cells::unknown(outline);
        if t - s <= length {
            self.record(&mut cells, s, t, (s < t).then(|| self.of(s + 1, t)));
        }
        Open {
            s,
            t,
            end: outline.saturated.slot,
            splits: 0..0,
            sweep_bytes: 0,
            null: Mark::default(),
            cells,
        }
    }

    /// The schedules that record s first.
    fn record(&self, cells: &mut Cells, s: usize, t: usize, inside: Option<Row<'_>>) {
        let (outline, width) = (self.outlines.of(s, t), self.costs.width);
        for way in self.costs.ways(s, t) {
            let least = inside.map_or(Mark::default(), |row| {
                way.saved.plus(row.outline.first, width)
            });
            let start = way.all.max(least).slot;
            if start > outline.saturated.slot {
                continue;
            }
            let part = inside.map_or(Part::NOTHING, |row| row.beside(way.saved, start, width));
            let count = (outline.saturated.slot - start) as usize + 1;
            relax(
                (cells, outline.first.slot),
                (start, count),
                (way.time, way.all),
                (part, Part::NOTHING),
            );
        }
    }

    /// The schedules that store a_j first.
    #[inline(always)]
    fn split(&self, open: &mut Open, j: usize) {
        let (s, t) = (open.s, open.t);
        let (costs, width) = (&self.costs, self.costs.width);
        let first = self.outlines.of(s, t).first.slot;
        let (right, left) = (self.of_ending(j, t), self.of(s, j - 1));
        let sweep = costs.sweep(s, j);
        let bound = sweep + right.outline.least + left.outline.least;
        while open.end > first && open.cells.time_of(open.end - 1 - first) <= bound {
            open.end -= 1;
        }
        let sweep_bytes = costs.sweep_bytes(s, j);
        if sweep_bytes != open.sweep_bytes {
            open.sweep_bytes = sweep_bytes;
            open.null = costs.null(t, sweep_bytes);
        }
        let (stored, grads) = (costs.stored(j), costs.grads(j, t));
        let parts = stored
            .plus(right.outline.first, width)
            .max(grads.plus(left.outline.first, width));
        let start = open.null.max(parts).slot;
        if start < open.end {
            relax(
                (&mut open.cells, first),
                (start, (open.end - start) as usize),
                (sweep, open.null),
                (
                    right.beside(stored, start, width),
                    left.beside(grads, start, width),
                ),
            );
        }
    }
}
