//! `optimal`: the least time under a budget among persistent schedules, nested recomputes included.
//!
//! Persistent means that what is stored stays until its backward pass. The dynamic program is that of Beaumont,
//! Eyraud-Dubois, Herrmann, Joly and Shilova (INRIA RR-9302; ACM TOMS 50(2) 2024; "rotor"), with parameter gradients
//! that accumulate during the backward pass. C(s,t,m) is the least time of the stages s..t within m bytes:
//! ```text
//! C(s,s,m) = forward_s + backward_s                                     if m >= all(s,s), else infinite
//! C1 = min over s<j<=t with m >= null(s,j,t) of  sum_{k=s}^{j-1} forward_k + C(j,t,m-x_j) + C(s,j-1,m)
//! C2 = forward_s + backward_s + C(s+1,t,m-X_{s+1})                      if m >= all(s,t)
//! C  = min(C1, C2)
//! ```
//! Both memory conditions of the recorded branch are tested: the widely copied implementation omits one of them and exceeds
//! its budget on stages with large temporary bytes. Memory is counted above G(t), the parameter gradients that exist when the
//! window's backward pass starts. So C(s,j-1,m) becomes C(s,j-1, m - (G(j-1) - G(t))), and depends only on the window's own
//! stages.
//!
//! C(s,t,.) is a decreasing step function. Its row in the table keeps at most one step per slot of memory: the fastest
//! schedule that needs less than the slot's end, with its need in exact bytes. With larger slots more steps are lost, but all
//! steps that are kept are correct. If all sizes divided by their common divisor fit in the slots, no schedule is lost, and
//! the plan is optimal among persistent schedules (checked against exhaustive search; where a tracked forward's temporary
//! bytes differ from an untracked one's, rare chains have a slightly better schedule that is not of this form). The first
//! step of a row is the schedule that needs least, in any slot: the smallest peak of a chain is exact.
//!
//! The best plan is one of: the steps of the table, of which the first has the smallest peak, and the plan without
//! recomputing. None of these depends on the budget, which only determines which of them fit: so a larger budget never gives
//! a slower plan. The content of a slot depends on no slot above it: for a single budget, one table is solved, which ends
//! there; below the smallest peak, one of a single slot.
//!
//! Times are rounded down to multiples of a power of two, about 2^-40 of the total time of the stages. So sums are
//! exact in any order, which equal windows require, and never exceed those of the simulator.
//!
//! Cost: O(n^3 slots) time, O(n^2 slots) bytes, both reduced by
//! - computing equal windows once, and windows of one length in parallel;
//! - storing steps, of which most rows have far fewer than there are slots;
//! - skipping, for a split at j, the slots where even the least time of both parts is no improvement. The sum of
//!   forwards grows with j, so the end of the remaining slots only moves down.
//!
//! Choices are not stored: the few of the final schedule are derived again.

use std::collections::HashMap;
use std::iter::once;

use rayon::prelude::*;

use super::terms::Terms;
use crate::chain::Stage;
use crate::schedule::Schedule;
use crate::seconds::Seconds;

/// The value of stages^3 * slots that takes some ten milliseconds.
const CHEAP_WORK: u64 = 300_000_000;

/// The maximum number of slots where no schedule is lost and a few stages make them cost little: a megabyte for a window.
const MOST_EXACT_SLOTS: u64 = 1 << 16;

/// The maximum number of slots where they cost almost nothing.
const MOST_CHEAP_SLOTS: u64 = 4_096;

/// Maximum of windows * slots of a table, with 16 bytes each: at most 2 GB, and less in practice, because most windows
/// have fewer steps than there are slots. The number of slots is reduced to stay within this.
const MOST_CELLS: u64 = 125_000_000;

/// Into how many slots the memory in which nothing is recomputed is divided; fewer where the table might pass 2 GB (from
/// about 700 stages on), more where they cost nothing.
const SLOTS: u64 = 500;

/// Steps whose times differ by less are compared by the simulator, whose sums are rounded unlike those of the table.
const ROUNDED: f64 = 1.0 - 1e-9;

/// The schedules among which the best is for any budget, or for `within`: bytes above those that are always held.
pub(super) fn schedules(terms: &Terms, within: Option<u64>) -> Vec<Schedule> {
    let whole = terms.whole();
    let slot = slot(terms, whole);
    let plain = Schedule::of_segments(&[terms.loss()]);
    if let Some(room) = within {
        if room >= whole {
            return vec![plain];
        }
        // A table of one slot has what needs least, and takes little.
        let leanest = Table::solve(terms, slot, 0);
        let first = leanest.steps()[0];
        if room < first.need {
            return vec![leanest.schedule(first)];
        }
    }
    let table = Table::solve(terms, slot, within.unwrap_or(whole));
    let steps = match within {
        Some(room) => fastest(table.steps(), room),
        None => table.steps(),
    };
    let nested = steps.par_iter().map(|step| table.schedule(*step));
    nested.chain([plain]).collect()
}

/// The fastest step that needs at most `room`, and those that are as fast to within rounding.
fn fastest(steps: &[Stair], room: u64) -> &[Stair] {
    let fitting = &steps[..steps.partition_point(|step| step.need <= room)];
    let least = fitting.last().map_or(0.0, |step| step.time);
    &fitting[fitting.partition_point(|step| step.time * ROUNDED > least)..]
}

/// The bytes of a slot, for up to `most` bytes above those that are always held. If every size is a multiple of it, no
/// schedule is lost. It depends on the chain, never on the budget, so every budget uses the same table.
fn slot(terms: &Terms, most: u64) -> u64 {
    let stages = terms.nodes.len() as u64;
    let cheap = (CHEAP_WORK / stages.pow(3)).min(MOST_EXACT_SLOTS);
    let affordable = MOST_CELLS / (stages.pow(2) / 2 + 1);
    let sizes = terms.nodes.iter().flat_map(Stage::sizes);
    let sizes = sizes.map(|(_, size)| size.0);
    let divisor = sizes.fold(terms.x[0], common_divisor).max(1);
    if most / divisor < SLOTS.max(cheap).min(affordable) {
        return divisor;
    }
    let slots = SLOTS.max(cheap.min(MOST_CHEAP_SLOTS)).min(affordable);
    most / slots.max(1) + 1
}

fn common_divisor(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        _ => common_divisor(b, a % b),
    }
}

/// A step of C(s,t,.): a schedule of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stair {
    /// Bytes that the schedule needs: above G(t), or for the whole chain above what is always resident.
    need: u64,
    /// Its time in seconds, rounded down; without the optimizer.
    time: f64,
}

/// Nothing to run, nothing needed.
const NOTHING: &[Stair] = &[Stair { need: 0, time: 0.0 }];

/// C for all windows of a chain, from slot 0 to the largest.
struct Table<'a> {
    terms: &'a Terms,
    /// Bytes of one slot.
    width: u64,
    slots: usize,
    /// `forwards[i]`: seconds of stages 0..i run forward.
    forwards: Vec<f64>,
    /// `plain[i]`: seconds of stages 0..i run forward and backward, the least that they take.
    plain: Vec<f64>,
    /// The steps of all different windows, the one of the least need first: each next one needs more and is faster.
    rows: Vec<Vec<Stair>>,
    /// The place in `rows` of each window s..t, at s * n + t.
    places: Vec<u32>,
}

/// Two rows whose steps make a step of a longer window.
struct Parts<'a> {
    /// Seconds in addition to those of the rows.
    time: f64,
    /// The minimum need, regardless of the rows.
    least: u64,
    /// Rows, each with what is held besides.
    right: (u64, &'a [Stair]),
    left: (u64, &'a [Stair]),
}

impl Parts<'_> {
    /// The least that a step made of these rows needs.
    fn need(&self) -> u64 {
        self.step(self.right.1[0], self.left.1[0]).need
    }

    /// The step that these steps of the rows make.
    fn step(&self, right: Stair, left: Stair) -> Stair {
        let needs = (self.right.0 + right.need).max(self.left.0 + left.need);
        Stair {
            need: self.least.max(needs),
            time: self.time + right.time + left.time,
        }
    }

    /// The steps of the rows that fit in so many bytes.
    fn within(&self, most: u64) -> Option<(Stair, Stair)> {
        let fitting = |(held, row): (u64, &[Stair])| within(row, most.checked_sub(held)?);
        (self.least <= most).then_some(())?;
        Some((fitting(self.right)?, fitting(self.left)?))
    }

    /// Takes the steps that are faster than those of `best`, by slot, in the slots before `end`.
    fn relax(&self, best: &mut [Stair], end: usize, width: u64) {
        let start = (self.need() / width) as usize;
        let (mut right, mut left) = (self.right.1, self.left.1);
        for (slot, best) in best.iter_mut().enumerate().take(end).skip(start) {
            let most = (slot as u64 + 1) * width - 1;
            for (held, row) in [(self.right.0, &mut right), (self.left.0, &mut left)] {
                while row.get(1).is_some_and(|step| held + step.need <= most) {
                    *row = &row[1..];
                }
            }
            let found = self.step(right[0], left[0]);
            if found.time < best.time {
                *best = found;
            }
        }
    }
}

/// The fastest step of a row that needs at most `most`.
fn within(row: &[Stair], most: u64) -> Option<Stair> {
    let fitting = row.partition_point(|step| step.need <= most);
    Some(row[fitting.checked_sub(1)?])
}

impl<'a> Table<'a> {
    /// Solves the program for slots of `width` bytes each, up to the slot that contains `memory`.
    fn solve(terms: &'a Terms, width: u64, memory: u64) -> Table<'a> {
        let n = terms.nodes.len();
        let seconds = |node: &Stage| node.forward_s + node.backward_s;
        let all: f64 = terms.nodes.iter().map(|node| seconds(node).0).sum();
        // A schedule runs each stage at most as often as there are stages, at most 2^11 times: sums stay below 2^53 units.
        let unit = 2_f64.powf(all.log2().ceil() - 40.0).max(f64::MIN_POSITIVE);
        let sums = |of: fn(&Stage) -> Seconds| -> Vec<f64> {
            let mut sum = 0.0;
            let later = terms.nodes.iter().map(|node| {
                sum += (of(node).0 / unit).floor() * unit;
                sum
            });
            once(0.0).chain(later).collect()
        };
        let mut table = Table {
            terms,
            width,
            slots: (memory / width) as usize + 1,
            forwards: sums(|node| node.forward_s),
            plain: sums(seconds),
            rows: Vec::new(),
            places: vec![0; n * n],
        };
        for length in 0..n {
            // A window is determined by the two that are a stage shorter, or by its only stage.
            let mut known: HashMap<(usize, usize), usize> = HashMap::new();
            let mut starts = Vec::new();
            for s in 0..n - length {
                let t = s + length;
                let shorter = match length {
                    0 => ((0..s).find(|&i| terms.equal(i, s)).unwrap_or(s), 0),
                    _ => (table.place(s, t - 1), table.place(s + 1, t)),
                };
                let place = *known.entry(shorter).or_insert_with(|| {
                    starts.push(s);
                    table.rows.len() + starts.len() - 1
                });
                table.places[s * n + t] = place as u32;
            }
            let rows = starts.par_iter().map(|&s| table.solved(s, s + length));
            let rows: Vec<Vec<Stair>> = rows.collect();
            table.rows.extend(rows);
        }
        table
    }

    /// The steps for the whole chain, the one of the least need first: each next one needs more and is faster.
    fn steps(&self) -> &[Stair] {
        self.row(0, self.terms.loss())
    }

    /// The schedule of a step. It is a tree over windows: s..t is either split at j (forward to a_j, which is stored, then the
    /// window j..t, then s..j-1 again), or its first stage is recorded, the window s+1..t follows inside, and the stage's
    /// backward ends it.
    fn schedule(&self, step: Stair) -> Schedule {
        let mut ranges = Vec::new();
        // An explicit stack: windows nest as deep as the chain is long.
        let mut windows = vec![(0, self.terms.loss(), step.need)];
        while let Some((mut s, t, mut need)) = windows.pop() {
            ranges.push((s, self.terms.loss().min(t + 1)));
            while s <= t {
                let (j, right, left) = self.choice(s, t, need);
                if s < j {
                    windows.push((s, j - 1, left));
                }
                (s, need) = (j.max(s + 1), right);
            }
        }
        Schedule(ranges)
    }

    fn place(&self, s: usize, t: usize) -> usize {
        self.places[s * self.terms.nodes.len() + t] as usize
    }

    fn row(&self, s: usize, t: usize) -> &[Stair] {
        &self.rows[self.place(s, t)]
    }

    /// What a schedule of s..t begins with: recording s, which is listed as j = s, or a split, by rising j.
    fn ways(&self, s: usize, t: usize) -> impl Iterator<Item = (usize, Parts<'_>)> {
        let terms = self.terms;
        let inside = if s < t { self.row(s + 1, t) } else { NOTHING };
        let recorded = Parts {
            time: self.plain[s + 1] - self.plain[s],
            least: terms.all(s, t),
            right: (terms.nodes[s].saved_bytes.0, inside),
            left: (0, NOTHING),
        };
        let mut forwards = 0;
        let splits = (s + 1..=t).map(move |j| {
            // a_s is counted elsewhere.
            let input = if j - 1 == s { 0 } else { terms.x[j - 1] };
            let temp = terms.nodes[j - 1].forward_temp_bytes.0;
            forwards = forwards.max(input + terms.x[j] + temp);
            let grads = terms.later_grads[j - 1] - terms.later_grads[t];
            let parts = Parts {
                time: self.forwards[j] - self.forwards[s],
                least: terms.y[t + 1] + forwards,
                right: (terms.x[j], self.row(j, t)),
                left: (grads, self.row(s, j - 1)),
            };
            (j, parts)
        });
        once((s, recorded)).chain(splits)
    }

    /// The row of s..t, from those of shorter windows.
    fn solved(&self, s: usize, t: usize) -> Vec<Stair> {
        let none = Stair {
            need: u64::MAX,
            time: f64::INFINITY,
        };
        let (mut leanest, mut best) = (none, vec![none; self.slots]);
        let mut end = self.slots;
        let plain = self.plain[t + 1] - self.plain[s];
        // Recording comes first: it is nearly always the best, and allows most splits to be skipped.
        for (_, parts) in self.ways(s, t) {
            while end > 0 && best[end - 1].time <= parts.time + plain {
                end -= 1;
            }
            if parts.least <= leanest.need {
                let fastest = parts.within(parts.need());
                let step = fastest.map_or(none, |(right, left)| parts.step(right, left));
                if (step.need, step.time) < (leanest.need, leanest.time) {
                    leanest = step;
                }
            } else if parts.least / self.width >= end as u64 {
                break;
            }
            parts.relax(&mut best, end, self.width);
        }
        let mut row = vec![leanest];
        for step in best {
            if row[row.len() - 1].time > step.time {
                row.push(step);
            }
        }
        row.shrink_to_fit();
        row
    }

    /// The choice that gives the schedule of s..t with this need, and what the windows inside need: the first one, in the
    /// order of the recurrence, with the same time and need.
    fn choice(&self, s: usize, t: usize, need: u64) -> (usize, u64, u64) {
        let wanted = within(self.row(s, t), need);
        let most = (need / self.width + 1) * self.width - 1;
        for (j, parts) in self.ways(s, t) {
            for (right, left) in [most, need].iter().filter_map(|&most| parts.within(most)) {
                if Some(parts.step(right, left)) == wanted {
                    return (j, right.need, left.need);
                }
            }
        }
        debug_assert!(false, "every step is made of shorter ones");
        // Recording all stages is always a valid schedule, even if it is not the requested one.
        (s, 0, 0)
    }
}
