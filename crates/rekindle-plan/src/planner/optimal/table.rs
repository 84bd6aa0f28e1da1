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
//! - one thread per window of a diagonal t - s = const.
//!
//! Choices are not stored: the few on the way of one schedule are derived again.

use std::collections::HashMap;

use rayon::prelude::*;

use super::super::PlanError;
use super::super::persistent::{Choice, emit};
use super::super::terms::Terms;
use super::repeats::Repeats;
use super::rounding::Rounded;
use super::time::Time;
use crate::schedule::Schedule;

/// The rows of one window.
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
    n: usize,
    rounded: Rounded,
    /// Time of stages 0..i run forward.
    forwards: Vec<f64>,
    /// `by_start[s * n + t]` and `by_end[t * n + s]`: the row of window s..t, twice, so that both reads of the inner
    /// loop run along memory.
    by_start: Vec<u32>,
    by_end: Vec<u32>,
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
        let n = terms.nodes.len();
        let mut forwards = vec![0.0];
        for node in &terms.nodes {
            forwards.push(forwards[forwards.len() - 1] + node.forward);
        }
        let mut table = Table {
            terms,
            slot,
            slots,
            n,
            rounded: Rounded::new(terms, slot, repeats),
            forwards,
            by_start: vec![0; n * n],
            by_end: vec![0; n * n],
            rows: Vec::new(),
        };
        let letters = table.rounded.letters(repeats);
        for length in 0..n {
            table.solve_diagonal(length, &letters);
        }
        table
    }

    /// The slots at which the time of the whole chain falls.
    pub(crate) fn steps(&self) -> Vec<usize> {
        let row = self.row(0, self.n - 1);
        (row.first..=self.slots.min(row.saturated))
            .filter(|&slot| slot == row.first || row.at(slot) < row.at(slot - 1))
            .collect()
    }

    /// The fastest schedule for so many slots.
    pub(crate) fn schedule(&self, slot: usize) -> Result<Schedule, PlanError> {
        emit(self.terms.loss(), slot, |s, t, &slot| {
            self.choice(s, t, slot)
        })
    }

    fn row(&self, s: usize, t: usize) -> &Row<T> {
        &self.rows[self.by_start[s * self.n + t] as usize]
    }

    fn solve_diagonal(&mut self, length: usize, letters: &[usize]) {
        // A window is known by the one that is a stage shorter and its last stage; one of a single stage by its input.
        let mut classes: HashMap<(u64, u64, usize), u32> = HashMap::new();
        let mut new: Vec<usize> = Vec::new();
        for s in 0..self.n - length {
            let t = s + length;
            let key = if length == 0 {
                (self.terms.x[s], self.terms.y[s], letters[s])
            } else {
                (u64::from(self.by_start[s * self.n + t - 1]), 0, letters[t])
            };
            let class = *classes.entry(key).or_insert_with(|| {
                new.push(s);
                (self.rows.len() + new.len() - 1) as u32
            });
            self.by_start[s * self.n + t] = class;
            self.by_end[t * self.n + s] = class;
        }
        let rows: Vec<Row<T>> = new
            .par_iter()
            .map(|&s| self.solve_window(s, s + length))
            .collect();
        self.rows.extend(rows);
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
        let left_rows = &self.by_start[s * self.n..][..self.n];
        let right_rows = &self.by_end[t * self.n..][..self.n];
        let mut forwards = self.terms.forward_peak(s, true);
        for j in s + 1..=t {
            let (left, right) = (
                &self.rows[left_rows[j - 1] as usize],
                &self.rows[right_rows[j] as usize],
            );
            let parts = (self.rounded.x[j] + right.first)
                .max(self.rounded.grads_between(self.terms, j, t) + left.first);
            if parts < first {
                first = first.min(parts.max(self.null(t, forwards)));
            }
            forwards = forwards.max(self.terms.forward_peak(j, false));
        }
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
        let mut forwards = self.terms.forward_peak(s, true);
        for j in s + 1..=t {
            let (left, right) = (
                &self.rows[left_rows[j - 1] as usize],
                &self.rows[right_rows[j] as usize],
            );
            let sweep = T::from_seconds(self.forwards[j] - self.forwards[s]);
            let bound = sweep + right.least + left.least;
            while end > first && times[end - 1 - first] <= bound {
                end -= 1;
            }
            let grads = self.rounded.grads_between(self.terms, j, t);
            let start = (self.rounded.x[j] + right.first).max(grads + left.first);
            if start < end {
                let start = start.max(self.null(t, forwards));
                if start < end {
                    relax(
                        &mut times[start - first..end - first],
                        start,
                        (sweep, right, self.rounded.x[j]),
                        Some((left, grads)),
                    );
                }
            }
            forwards = forwards.max(self.terms.forward_peak(j, false));
        }
        Row {
            first,
            saturated: saturated.max(first),
            least,
            times,
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
