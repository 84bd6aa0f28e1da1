//! The program's table: C(s,t,m) for all windows, in slots.
//!
//! ```text
//! C(s,s,m) = forward_s + backward_s                                     if m >= all(s,s), else infinite
//! C1 = min over s<j<=t with m >= null(s,j,t) of  sum_{k=s}^{j-1} forward_k + C(j,t,m-x_j) + C(s,j-1,m)
//! C2 = min over the ways to record s of  forward_s + backward_s + C(s+1,t,m-X_{s+1})      if m >= all(s,t)
//! C  = min(C1, C2)
//! ```
//! Memory is counted in slots above G(t), the parameter gradients that are there when the window's backward starts.
//! So C(s,j-1,m) becomes C(s,j-1, m - (G(j-1) - G(t))), and a window's row depends on its own stages alone. How sizes
//! are rounded is in `rounding.rs`.
//!
//! Cost: O(n^3 slots) time, O(n^2 slots) bytes, both cut down by
//! - keeping of each row only the part from the first feasible slot to the first that reaches the least time (all
//!   recorded in their fastest way), where it becomes constant;
//! - computing equal windows once;
//! - leaving out, for a split at j, the slots where even the least time of both parts is no improvement. The sum of
//!   forwards grows with j, so this end of the row only moves down;
//! - leaving out, for a split, every block of slots in which it cannot gain;
//! - one thread per window of a diagonal t - s = const.
//!
//! Choices are not stored: the few on the way of one schedule are derived again.

use rayon::prelude::*;

use super::super::PlanError;
use super::super::persistent::{Choice, emit};
use super::super::repeats::Repeats;
use super::super::terms::Terms;
use super::super::windows::Windows;
use super::rounding::Rounded;
use super::time::Time;
use crate::schedule::Schedule;

/// Slots that are looked at together.
const BLOCK: usize = 64;

/// The row of one window.
struct Row<T> {
    /// The first feasible slot.
    first: usize,
    /// From this slot on the time is `least`.
    saturated: usize,
    /// The least time of the window, nothing recomputed.
    least: T,
    /// The times at slots `first..saturated`, as far as the table goes.
    times: Vec<T>,
}

/// A way to split a window.
struct Split<T> {
    /// a_j is stored.
    j: usize,
    /// The first slot that pays for it.
    start: usize,
    /// Slots of the gradients that the right part adds.
    grads: usize,
    /// Time of the forwards from s to a_j.
    sweep: T,
}

impl<T: Time> Row<T> {
    fn at(&self, slot: usize) -> T {
        if slot < self.first {
            T::INFINITY
        } else if slot >= self.saturated {
            self.least
        } else {
            self.times[slot - self.first]
        }
    }
}

/// C for all windows of a chain, from slot 0 to `slots`.
pub(crate) struct Table<'a, T> {
    terms: &'a Terms,
    /// Bytes of one slot.
    slot: u64,
    /// The largest slot.
    slots: usize,
    rounded: Rounded,
    /// Time of stages 0..i run forward.
    forwards: Vec<f64>,
    windows: Windows,
    rows: Vec<Row<T>>,
}

impl<'a, T: Time> Table<'a, T> {
    /// Solves the program for up to `slots` slots of `slot` bytes each.
    pub(crate) fn solve(
        terms: &'a Terms,
        repeats: &Repeats,
        slot: u64,
        slots: usize,
    ) -> Table<'a, T> {
        let mut forwards = vec![0.0];
        for node in &terms.nodes {
            forwards.push(forwards[forwards.len() - 1] + node.forward);
        }
        let rounded = Rounded::new(terms, slot, repeats);
        let windows = Windows::new(terms, &rounded.letters(repeats));
        let mut table = Table {
            terms,
            slot,
            slots,
            rounded,
            forwards,
            windows,
            rows: Vec::new(),
        };
        for length in 0..table.windows.len() {
            let representatives = table.windows.representatives(length).par_iter();
            let rows: Vec<Row<T>> = representatives
                .map(|&s| table.solve_window(s, s + length))
                .collect();
            table.rows.extend(rows);
        }
        table
    }

    /// The slots at which the time of the whole chain falls; only the last of every `spacing` slots.
    pub(crate) fn steps(&self, spacing: usize) -> Vec<usize> {
        let row = self.row(0, self.terms.loss());
        let mut steps: Vec<usize> = Vec::new();
        for slot in row.first..=self.slots.min(row.saturated) {
            if slot > row.first && row.at(slot) >= row.at(slot - 1) {
                continue;
            }
            if steps
                .last()
                .is_some_and(|last| last / spacing == slot / spacing)
            {
                steps.pop();
            }
            steps.push(slot);
        }
        steps
    }

    /// The fastest schedule for so many slots.
    pub(crate) fn schedule(&self, slot: usize) -> Result<Schedule, PlanError> {
        emit(self.terms.loss(), slot, |s, t, &slot| {
            self.choice(s, t, slot)
        })
    }

    fn row(&self, s: usize, t: usize) -> &Row<T> {
        &self.rows[self.windows.of(s, t)]
    }

    /// The same row, for a loop over s.
    fn row_to(&self, s: usize, t: usize) -> &Row<T> {
        &self.rows[self.windows.of_ending(s, t)]
    }

    /// In slots: null(s,j,t) - G(t), where `forwards` is the largest untracked forward.
    fn null(&self, t: usize, forwards: u64) -> usize {
        (self.terms.y[t + 1] + forwards).div_ceil(self.slot) as usize
    }

    /// For each way to record s before the rest of s..t: its number, slots of all(s,t) - G(t), slots of X, and time.
    fn ways(&self, s: usize, t: usize) -> impl Iterator<Item = (usize, usize, usize, T)> {
        self.terms.nodes[s]
            .ways
            .iter()
            .enumerate()
            .map(move |(number, way)| {
                let all = self.terms.all(s, t, way).div_ceil(self.slot) as usize;
                (
                    number,
                    all,
                    way.saved.div_ceil(self.slot) as usize,
                    T::from_seconds(way.seconds),
                )
            })
    }

    fn solve_window(&self, s: usize, t: usize) -> Row<T> {
        let inside = (s < t).then(|| self.row(s + 1, t));
        let fastest = self
            .ways(s, t)
            .map(|(.., time)| time)
            .fold(T::INFINITY, T::least);
        let least = inside.map_or(fastest, |row| fastest + row.least);
        let (mut first, mut saturated) = (usize::MAX, usize::MAX);
        for (_, all, saved, time) in self.ways(s, t) {
            first = first.min(inside.map_or(all, |row| all.max(saved + row.first)));
            if time == fastest {
                saturated = saturated.min(inside.map_or(all, |row| all.max(saved + row.saturated)));
            }
        }
        let splits = self.splits(s, t);
        first = splits
            .iter()
            .map(|split| split.start)
            .fold(first, usize::min);
        // Past the table nothing is asked for; an infeasible window keeps no times at all.
        let first = first.min(self.slots + 1);
        let mut end = saturated.min(self.slots + 1).max(first);
        let mut times = vec![T::INFINITY; end - first];
        for (_, all, saved, time) in self.ways(s, t) {
            let start = inside
                .map_or(all, |row| all.max(saved + row.first))
                .max(first);
            if start >= end {
                continue;
            }
            match inside {
                Some(row) => relax(&mut times[start - first..], start, (time, row, saved), None),
                None => relax_constant(&mut times[start - first..], time),
            }
        }
        for split in &splits {
            let (right, left) = (self.row_to(split.j, t), self.row(s, split.j - 1));
            let bound = split.sweep + right.least + left.least;
            while end > first && times[end - 1 - first] <= bound {
                end -= 1;
            }
            self.improve(&mut times, first, end, (s, t), split);
        }
        Row {
            first,
            saturated: saturated.max(first),
            least,
            times,
        }
    }

    /// The splits of a window that some slot of the table can pay for.
    fn splits(&self, s: usize, t: usize) -> Vec<Split<T>> {
        let mut forwards = self.terms.forward_peak(s, true);
        let mut splits = Vec::with_capacity(t - s);
        for j in s + 1..=t {
            let (left, right) = (self.row(s, j - 1), self.row_to(j, t));
            let grads = self.rounded.grads_between(self.terms, j, t);
            let parts = (self.rounded.x[j] + right.first).max(grads + left.first);
            let start = if parts > self.slots {
                usize::MAX
            } else {
                parts.max(self.null(t, forwards))
            };
            let sweep = T::from_seconds(self.forwards[j] - self.forwards[s]);
            splits.push(Split {
                j,
                start,
                grads,
                sweep,
            });
            forwards = forwards.max(self.terms.forward_peak(j, false));
        }
        splits
    }

    /// [`relax`] for a split up to slot `end`, but only for the blocks of slots in which it may find an improvement:
    /// times fall with the slots, so a split gains nothing in a block when its time at the end is no better than the
    /// best so far at the start. `times` begins at slot `first`.
    fn improve(
        &self,
        times: &mut [T],
        first: usize,
        end: usize,
        (s, t): (usize, usize),
        split: &Split<T>,
    ) {
        let (right, left) = (self.row_to(split.j, t), self.row(s, split.j - 1));
        let shift = self.rounded.x[split.j];
        let mut from = split.start;
        let mut open = from;
        while from < end {
            let to = (from + BLOCK).min(end);
            let at_end = split.sweep + right.at(to - 1 - shift) + left.at(to - 1 - split.grads);
            let gains = at_end < times[from - first];
            let close = if gains { to } else { from };
            if (!gains || to == end) && open < close {
                let times = &mut times[open - first..close - first];
                relax(
                    times,
                    open,
                    (split.sweep, right, shift),
                    Some((left, split.grads)),
                );
            }
            if !gains {
                open = to;
            }
            from = to;
        }
    }

    /// The best choice for a window with `slot` slots, in the order of the recurrence.
    fn choice(&self, s: usize, t: usize, slot: usize) -> Choice<usize> {
        let mut best = T::INFINITY;
        let mut choice = Choice::Track {
            alternative: 0,
            rest: 0,
        };
        for (alternative, all, saved, time) in self.ways(s, t) {
            if slot < all || slot < saved {
                continue;
            }
            let time = if s < t {
                time + self.row(s + 1, t).at(slot - saved)
            } else {
                time
            };
            if time < best {
                best = time;
                choice = Choice::Track {
                    alternative,
                    rest: slot - saved,
                };
            }
        }
        let mut forwards = self.terms.forward_peak(s, true);
        for j in s + 1..=t {
            let grads = self.rounded.grads_between(self.terms, j, t);
            if slot >= self.null(t, forwards).max(self.rounded.x[j]).max(grads) {
                let sweep = T::from_seconds(self.forwards[j] - self.forwards[s]);
                let (right, left) = (slot - self.rounded.x[j], slot - grads);
                let time = sweep + self.row(j, t).at(right) + self.row(s, j - 1).at(left);
                if time < best {
                    best = time;
                    choice = Choice::Split { j, right, left };
                }
            }
            forwards = forwards.max(self.terms.forward_peak(j, false));
        }
        choice
    }
}

/// `times[i] = min(times[i], time + right(start + i - shift) + left(start + i - grads))`, in pieces in which each row
/// is an array or constant. Both rows are feasible from `start` on.
fn relax<T: Time>(
    times: &mut [T],
    start: usize,
    (time, right, shift): (T, &Row<T>, usize),
    left: Option<(&Row<T>, usize)>,
) {
    let end = start + times.len();
    let right_end = (right.saturated + shift).clamp(start, end);
    let left_end = left.map_or(start, |(row, grads)| {
        (row.saturated + grads).clamp(start, end)
    });
    let left_least = left.map(|(row, _)| row.least);
    let both = right_end.min(left_end);
    let either = right_end.max(left_end);
    let piece = |row: &'_ Row<T>, shift: usize, from: usize| from - shift - row.first;

    if let Some((left, grads)) = left
        && both > start
    {
        let right_times = &right.times[piece(right, shift, start)..];
        let left_times = &left.times[piece(left, grads, start)..];
        let rows = right_times.iter().zip(left_times);
        for (best, (&right, &left)) in times[..both - start].iter_mut().zip(rows) {
            *best = best.least(time + right + left);
        }
    }
    if right_end > both {
        let constant = left_least.map_or(time, |least| time + least);
        let right_times = &right.times[piece(right, shift, both)..];
        for (best, &right) in times[both - start..right_end - start]
            .iter_mut()
            .zip(right_times)
        {
            *best = best.least(constant + right);
        }
    }
    if let Some((left, grads)) = left
        && left_end > both
    {
        let constant = time + right.least;
        let left_times = &left.times[piece(left, grads, both)..];
        for (best, &left) in times[both - start..left_end - start]
            .iter_mut()
            .zip(left_times)
        {
            *best = best.least(constant + left);
        }
    }
    let constant = left_least.map_or(time + right.least, |least| time + right.least + least);
    relax_constant(&mut times[either - start..], constant);
}

fn relax_constant<T: Time>(times: &mut [T], constant: T) {
    for best in times {
        *best = best.least(constant);
    }
}
