//! The program's table: C(s,t,m) for all windows, in exact bytes.
//!
//! ```text
//! C(s,s,m) = forward_s + backward_s                                     if m >= all(s,s), else infinite
//! C1 = min over s<j<=t with m >= null(s,j,t) of  sum_{k=s}^{j-1} forward_k + C(j,t,m-x_j) + C(s,j-1,m)
//! C2 = min over the ways to record s of  forward_s + backward_s + C(s+1,t,m-X_{s+1})      if m >= all(s,t)
//! C  = min(C1, C2)
//! ```
//! Memory is counted above G(t), the parameter gradients that are there when the window's backward starts. So C(s,j-1,m)
//! becomes C(s,j-1, m - (G(j-1) - G(t))), and a window's row depends on its own stages alone.
//!
//! C(s,t,.) is a falling staircase. Of its steps a row keeps one per slot of memory, with its need in exact bytes
//! (`row.rs`): the larger the slots, the more steps are lost, but none that is kept is wrong. What a slot holds depends on
//! no slot above it, so a table that ends at a budget has the same steps below it as a table that does not.
//!
//! Cost: O(n^3 slots) time, O(n^2 slots) bytes, both cut down by
//! - keeping of each row only the part from the first feasible slot to the first that reaches the least time (all
//!   recorded in their fastest way), where it becomes constant (`outline.rs`);
//! - computing equal windows once;
//! - leaving out, for a split at j, the slots where even the least time of both parts is no improvement. The sum of
//!   forwards grows with j, so this end of the row only moves down;
//! - tiles of windows that read the same rows (`tile.rs`), one thread for each;
//! - the widest vectors that the machine has.
//!
//! Choices are not stored: the few on the way of one schedule are derived again.

use rayon::prelude::*;

use super::super::PlanError;
use super::super::persistent::{Choice, emit};
use super::super::smallest_peak::SmallestPeaks;
use super::super::terms::Terms;
use super::costs::Costs;
use super::mark::Mark;
use super::outline::Outlines;
use super::row::Cells;
use super::tile::{Open, Rows};
use crate::schedule::Schedule;

/// Lengths of windows that are solved together.
const LENGTHS: usize = 16;

/// The most neighbouring windows of a length that are solved together.
const NEIGHBOURS: usize = 16;

/// So many tiles at least, where there are enough windows, for the threads to share.
const TILES: usize = 16;

/// C for all windows of a chain, from slot 0 to the largest.
pub(super) struct Table<'a> {
    rows: Rows<'a>,
}

/// A step of C(0,L,.): a schedule of the whole chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Step {
    need: Mark,
    /// Bytes above what is always resident.
    pub(super) bytes: u64,
    /// The schedule takes at least so long, and hardly longer; without the optimizer.
    pub(super) at_least: f64,
}

impl<'a> Table<'a> {
    /// Solves the program for the slots, `width` bytes each, up to the one that `memory` lies in. No schedule that matters
    /// takes longer than `slowest` seconds.
    pub(super) fn solve(
        terms: &'a Terms,
        peaks: &'a SmallestPeaks,
        width: u64,
        memory: u64,
        slowest: f64,
    ) -> Table<'a> {
        let costs = Costs::new(terms, width, (memory / width) as u32, slowest);
        let outlines = Outlines::new(&costs, peaks);
        let n = costs.len();
        let mut rows = Rows {
            costs,
            windows: &peaks.windows,
            outlines,
            cells: Vec::new(),
        };
        let mut length = 0;
        while length < n {
            let lengths = LENGTHS.min(n - length);
            for open in open_band(&rows, length, lengths) {
                let cells: Vec<Cells> = open
                    .into_par_iter()
                    .map(|open| rows.close(open, length))
                    .collect();
                rows.cells.extend(cells);
            }
            length += lengths;
        }
        Table { rows }
    }

    /// The steps for the whole chain, the one of the least need first: each next one needs more and is faster.
    pub(super) fn steps(&self) -> Vec<Step> {
        let costs = &self.rows.costs;
        let row = self.rows.of(0, costs.len() - 1);
        let step = |(time, need): (u32, Mark)| Step {
            need,
            bytes: need.bytes(costs.width),
            at_least: costs.seconds(time),
        };
        row.points(costs.slots).into_iter().map(step).collect()
    }

    /// The schedule of a step.
    pub(super) fn schedule(&self, step: Step) -> Result<Schedule, PlanError> {
        let loss = self.rows.costs.terms.loss();
        emit(loss, step.need, |s, t, &need| self.choice(s, t, need))
    }

    /// How the schedule of s..t with this need came about: the first choice in the order of the recurrence with the
    /// same time and the same need.
    fn choice(&self, s: usize, t: usize, need: Mark) -> Choice<Mark> {
        let (rows, costs) = (&self.rows, &self.rows.costs);
        let (width, wanted) = (costs.width, rows.of(s, t).within(need));
        for way in costs.ways(s, t).filter(|way| way.all <= need) {
            let inside = if s < t {
                let rest = need.minus(way.saved, width);
                rest.and_then(|rest| rows.of(s + 1, t).within(rest))
            } else {
                Some((0, Mark::default()))
            };
            let Some((time, rest)) = inside else { continue };
            let inside = if s < t {
                way.saved.plus(rest, width)
            } else {
                rest
            };
            if Some((way.time + time, way.all.max(inside))) == wanted {
                return Choice::Track {
                    alternative: way.number,
                    rest,
                };
            }
        }
        for j in s + 1..=t {
            let (stored, grads) = (costs.stored(j), costs.grads(j, t));
            let null = costs.null(t, costs.sweep_bytes(s, j));
            if null > need {
                break;
            }
            let right = need.minus(stored, width);
            let left = need.minus(grads, width);
            let right = right.and_then(|most| rows.of(j, t).within(most));
            let left = left.and_then(|most| rows.of(s, j - 1).within(most));
            if let (Some((right_time, right)), Some((left_time, left))) = (right, left) {
                let time = costs.sweep(s, j) + right_time + left_time;
                let needs = stored.plus(right, width).max(grads.plus(left, width));
                if Some((time, needs.max(null))) == wanted {
                    return Choice::Split { j, right, left };
                }
            }
        }
        debug_assert!(false, "every step is made of shorter ones");
        // Recording all stages is always a schedule, if not the one that was asked for.
        Choice::Track {
            alternative: 0,
            rest: Mark::default(),
        }
    }
}

/// The windows of lengths `length..length + lengths`, by length, with all splits taken that need only rows shorter than
/// `length`.
fn open_band(rows: &Rows<'_>, length: usize, lengths: usize) -> Vec<Vec<Open>> {
    let mut band: Vec<(usize, usize)> = (length..length + lengths)
        .flat_map(|length| {
            let starts = rows.windows.representatives(length);
            starts.iter().map(move |&s| (s, s + length))
        })
        .collect();
    band.sort_unstable();
    let width = (rows.windows.representatives(length).len() / TILES).clamp(1, NEIGHBOURS);
    let tiles: Vec<&[(usize, usize)]> = band.chunk_by(|a, b| a.0 / width == b.0 / width).collect();
    let opened: Vec<Vec<Open>> = tiles
        .into_par_iter()
        .with_max_len(1)
        .map(|tile| rows.open_tile(tile, length))
        .collect();
    let mut by_length: Vec<Vec<Open>> = (0..lengths).map(|_| Vec::new()).collect();
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

    /// Some hundred times, each rounded down by less than a part in 2^29 of 10,000 seconds, in a sum of at least 100.
    const ROUNDED_DOWN: f64 = 1.000_1;

    fn chain(stages: usize, kinds: usize, unit: u64) -> Chain {
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
                output_bytes: Bytes(1 + below(9 * unit)),
                saved_bytes: Bytes(10 * unit + below(9 * unit)),
                forward_temp_bytes: Bytes(below(5 * unit)),
                tracked_temp_bytes: Bytes(below(9 * unit)),
                backward_temp_bytes: Bytes(below(9 * unit)),
                grad_bytes: Bytes(below(3 * unit)),
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

    /// C(s,t,m) by the recurrence as it stands in the module's header, for every number of bytes.
    fn plain(costs: &Costs<'_>, most: u64) -> Vec<Vec<Vec<Option<u32>>>> {
        let n = costs.len();
        let bytes = |mark: Mark| mark.bytes(costs.width) as usize;
        let mut table = vec![vec![Vec::<Option<u32>>::new(); n]; n];
        for length in 0..n {
            for s in 0..n - length {
                let t = s + length;
                let at = |m: usize| {
                    let mut best: Option<u32> = None;
                    let mut take = |time: Option<u32>| best = best.into_iter().chain(time).min();
                    for way in costs.ways(s, t).filter(|way| m >= bytes(way.all)) {
                        take(if s == t {
                            Some(way.time)
                        } else {
                            let rest = m.checked_sub(bytes(way.saved));
                            rest.and_then(|rest| Some(way.time + table[s + 1][t][rest]?))
                        });
                    }
                    for j in s + 1..=t {
                        let null = bytes(costs.null(t, costs.sweep_bytes(s, j)));
                        let right = m.checked_sub(bytes(costs.stored(j)));
                        let left = m.checked_sub(bytes(costs.grads(j, t)));
                        if let (true, Some(right), Some(left)) = (m >= null, right, left) {
                            let parts = table[j][t][right].zip(table[s][j - 1][left]);
                            take(parts.map(|(right, left)| costs.sweep(s, j) + right + left));
                        }
                    }
                    best
                };
                table[s][t] = (0..=most as usize).map(at).collect();
            }
        }
        table
    }

    fn agrees(chain: &Chain, most: u64) {
        let terms = Terms::new(chain);
        let slowest = 100.0 * chain.stages.len() as f64;
        let peaks = SmallestPeaks::new(&terms);
        let rows = Table::solve(&terms, &peaks, 1, most, slowest).rows;
        let expected = plain(&rows.costs, most);
        for (s, t) in (0..rows.costs.len()).flat_map(|t| (0..=t).map(move |s| (s, t))) {
            for (memory, &expected) in expected[s][t].iter().enumerate() {
                let found = rows.of(s, t).within(Mark::new(memory as u64, 1));
                assert_eq!(
                    found.map(|(time, _)| time),
                    expected,
                    "stages {s}..{t} within {memory} bytes"
                );
            }
        }
    }

    #[test]
    fn different_stages_agree_with_the_plain_recurrence() {
        agrees(&chain(2 * LENGTHS + 5, 2 * LENGTHS + 5, 1), 200);
    }

    #[test]
    fn repeating_stages_agree_with_the_plain_recurrence() {
        agrees(&chain(2 * LENGTHS + 9, 3, 1), 200);
    }

    /// Needs are exact whatever the slots: the simulator measures the same.
    #[test]
    fn steps_need_what_the_simulator_says() {
        for (stages, kinds) in [(40, 40), (40, 3), (7, 7)] {
            let chain = chain(stages, kinds, 1_000_003);
            let terms = Terms::new(&chain);
            let peaks = SmallestPeaks::new(&terms);
            for width in [700_001, 9_000_001, 60_000_000] {
                let table = Table::solve(&terms, &peaks, width, 1 << 30, 1e4);
                let steps = table.steps();
                assert!(!steps.is_empty());
                for step in steps {
                    let run = crate::simulate(&chain, &table.schedule(step).expect("a schedule"))
                        .expect("a schedule of the chain");
                    assert_eq!(run.peak - chain.resident_bytes(), Bytes(step.bytes));
                    assert!((step.at_least..step.at_least * ROUNDED_DOWN).contains(&run.time.0));
                }
            }
        }
    }

    /// What a table holds below a budget does not depend on where it ends.
    #[test]
    fn a_shorter_table_has_the_same_steps() {
        let chain = chain(50, 50, 1_000_003);
        let terms = Terms::new(&chain);
        let peaks = SmallestPeaks::new(&terms);
        let solve = |memory| Table::solve(&terms, &peaks, 5_000_000, memory, 1e5);
        let whole = solve(1 << 30).steps();
        for memory in [100_000_000, 200_000_000, 400_000_000] {
            let steps = solve(memory).steps();
            assert!(!steps.is_empty());
            assert_eq!(steps, whole[..steps.len()]);
        }
    }
}
