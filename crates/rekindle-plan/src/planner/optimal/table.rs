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
//!   recorded in their fastest way), where it becomes constant (`outline.rs`);
//! - computing equal windows once;
//! - leaving out, for a split at j, the slots where even the least time of both parts is no improvement. The sum of
//!   forwards grows with j, so this end of the row only moves down;
//! - tiles of windows that read the same rows (`tile.rs`), one thread for each;
//! - the widest vectors that the machine has (`relax.rs`).
//!
//! Choices are not stored: the few on the way of one schedule are derived again.

use rayon::prelude::*;

use super::super::PlanError;
use super::super::persistent::{Choice, emit};
use super::super::repeats::Repeats;
use super::super::terms::Terms;
use super::super::windows::Windows;
use super::costs::Costs;
use super::outline::Outlines;
use super::tile::{Open, Rows};
use super::time::Time;
use crate::schedule::Schedule;

/// Lengths of windows that are solved together.
const LENGTHS: usize = 16;

/// The most neighbouring windows of a length that are solved together.
const NEIGHBOURS: usize = 16;

/// So many tiles at least, where there are enough windows, for the threads to share.
const TILES: usize = 16;

/// C for all windows of a chain, from slot 0 to the largest.
pub(crate) struct Table<'a, T> {
    rows: Rows<'a, T>,
}

impl<'a, T: Time> Table<'a, T> {
    /// Solves the program for up to `slots` slots of `slot` bytes each.
    pub(crate) fn solve(
        terms: &'a Terms,
        repeats: &Repeats,
        slot: u64,
        slots: usize,
    ) -> Table<'a, T> {
        let costs = Costs::new(terms, repeats, slot, slots);
        let windows = Windows::new(terms, &costs.rounded.letters(repeats));
        let outlines = Outlines::new(&costs, &windows);
        let n = costs.len();
        let mut rows = Rows {
            costs,
            windows,
            outlines,
            times: Vec::new(),
        };
        let mut length = 0;
        while length < n {
            let lengths = LENGTHS.min(n - length);
            for open in open_band(&rows, length, lengths) {
                let times: Vec<Vec<T>> = open
                    .into_par_iter()
                    .map(|open| rows.close(open, length))
                    .collect();
                rows.times.extend(times);
            }
            length += lengths;
        }
        Table { rows }
    }

    /// The slots at which the time of the whole chain falls; only the last of every `spacing` slots.
    pub(crate) fn steps(&self, spacing: usize) -> Vec<usize> {
        let row = self.rows.of(0, self.rows.costs.len() - 1);
        let (first, last) = (row.outline.first(), row.outline.saturated());
        let mut steps: Vec<usize> = Vec::new();
        for slot in first..=last.min(self.rows.costs.slots) {
            if slot > first && row.at(slot) >= row.at(slot - 1) {
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
        emit(self.rows.costs.terms.loss(), slot, |s, t, &slot| {
            self.choice(s, t, slot)
        })
    }

    /// The best choice for a window with `slot` slots, in the order of the recurrence.
    fn choice(&self, s: usize, t: usize, slot: usize) -> Choice<usize> {
        let (rows, costs) = (&self.rows, &self.rows.costs);
        let mut best = T::INFINITY;
        let mut choice = Choice::Track {
            alternative: 0,
            rest: 0,
        };
        for way in costs.ways::<T>(s, t) {
            if slot < way.all || slot < way.saved {
                continue;
            }
            let rest = slot - way.saved;
            let time = if s < t {
                way.time + rows.of(s + 1, t).at(rest)
            } else {
                way.time
            };
            if time < best {
                best = time;
                choice = Choice::Track {
                    alternative: way.number,
                    rest,
                };
            }
        }
        for j in s + 1..=t {
            let (stored, grads) = (costs.stored(j), costs.grads(j, t));
            let null = costs.null(t, costs.sweep_bytes(s, j));
            if slot >= null.max(stored).max(grads) {
                let (right, left) = (slot - stored, slot - grads);
                let parts = (rows.of(j, t).at(right), rows.of(s, j - 1).at(left));
                let time = costs.sweep::<T>(s, j) + parts.0 + parts.1;
                if time < best {
                    best = time;
                    choice = Choice::Split { j, right, left };
                }
            }
        }
        choice
    }
}

/// The windows of lengths `length..length + lengths`, by length, with all splits taken that need only rows shorter than
/// `length`.
fn open_band<T: Time>(rows: &Rows<'_, T>, length: usize, lengths: usize) -> Vec<Vec<Open<T>>> {
    let mut band: Vec<(usize, usize)> = (length..length + lengths)
        .flat_map(|length| {
            let starts = rows.windows.representatives(length);
            starts.iter().map(move |&s| (s, s + length))
        })
        .collect();
    band.sort_unstable();
    let width = (rows.windows.representatives(length).len() / TILES).clamp(1, NEIGHBOURS);
    let tiles: Vec<&[(usize, usize)]> = band.chunk_by(|a, b| a.0 / width == b.0 / width).collect();
    let opened: Vec<Vec<Open<T>>> = tiles
        .into_par_iter()
        .with_max_len(1)
        .map(|tile| rows.open_tile(tile, length))
        .collect();
    let mut by_length: Vec<Vec<Open<T>>> = (0..lengths).map(|_| Vec::new()).collect();
    for open in opened.into_iter().flatten() {
        by_length[open.t - open.s - length].push(open);
    }
    by_length
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use crate::chain::{Chain, LossCost, OptimizerCost, Stage};
    use crate::seconds::Seconds;

    /// The order of summation differs.
    const ROUNDING: f64 = 1e-12;

    fn chain(stages: usize, kinds: usize) -> Chain {
        let mut state = 3_u64;
        let mut below = |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % bound
        };
        let kinds: Vec<Stage> = (0..kinds)
            .map(|_| Stage {
                forward_s: Seconds(below(9) as f64),
                backward_s: Seconds(below(9) as f64),
                output_bytes: Bytes(1 + below(9)),
                saved_bytes: Bytes(10 + below(9)),
                forward_temp_bytes: Bytes(below(5)),
                tracked_temp_bytes: Bytes(below(9)),
                backward_temp_bytes: Bytes(below(9)),
                grad_bytes: Bytes(below(3)),
                ..Stage::default()
            })
            .collect();
        Chain {
            input_bytes: Bytes(4),
            input_grad: true,
            fixed_bytes: Bytes::ZERO,
            stages: kinds.into_iter().cycle().take(stages).collect(),
            loss: LossCost::default(),
            optimizer: OptimizerCost::default(),
        }
    }

    /// The recurrence as it stands in the module's header: every window, every slot, every split.
    fn plain(costs: &Costs<'_>) -> Vec<Vec<Vec<f64>>> {
        let n = costs.len();
        let mut table = vec![vec![Vec::new(); n]; n];
        for length in 0..n {
            for s in 0..n - length {
                let t = s + length;
                let at = |m: usize| {
                    let mut best = f64::INFINITY;
                    for way in costs.ways::<f64>(s, t).filter(|way| m >= way.all) {
                        best = match m.checked_sub(way.saved) {
                            _ if s == t => best.min(way.time),
                            Some(rest) => best.min(way.time + table[s + 1][t][rest]),
                            None => best,
                        };
                    }
                    for j in s + 1..=t {
                        let null = costs.null(t, costs.sweep_bytes(s, j));
                        let (x, grads) = (costs.stored(j), costs.grads(j, t));
                        if m >= null.max(x).max(grads) {
                            let parts = table[j][t][m - x] + table[s][j - 1][m - grads];
                            best = best.min(costs.sweep::<f64>(s, j) + parts);
                        }
                    }
                    best
                };
                table[s][t] = (0..=costs.slots).map(at).collect();
            }
        }
        table
    }

    fn agrees(chain: &Chain, slot: u64, slots: usize) {
        let terms = Terms::new(chain);
        let repeats = Repeats::new(&terms);
        let rows = Table::<f64>::solve(&terms, &repeats, slot, slots).rows;
        let expected = plain(&rows.costs);
        for (s, t) in (0..rows.costs.len()).flat_map(|t| (0..=t).map(move |s| (s, t))) {
            for (slot, &expected) in expected[s][t].iter().enumerate() {
                let found = rows.of(s, t).at(slot);
                assert!(
                    found == expected || (found - expected).abs() <= ROUNDING * expected,
                    "stages {s}..{t} with {slot} slots: {found}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn different_stages_agree_with_the_plain_recurrence() {
        agrees(&chain(2 * LENGTHS + 5, 2 * LENGTHS + 5), 2, 150);
    }

    #[test]
    fn repeating_stages_agree_with_the_plain_recurrence() {
        agrees(&chain(2 * LENGTHS + 9, 3), 2, 150);
    }
}
