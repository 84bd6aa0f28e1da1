//! The table of the dynamic program: C(s,t,m) for all windows, in exact bytes.
//!
//! ```text
//! C(s,s,m) = forward_s + backward_s                                     if m >= all(s,s), else infinite
//! C1 = min over s<j<=t with m >= null(s,j,t) of  sum_{k=s}^{j-1} forward_k + C(j,t,m-x_j) + C(s,j-1,m)
//! C2 = forward_s + backward_s + C(s+1,t,m-X_{s+1})                      if m >= all(s,t)
//! C  = min(C1, C2)
//! ```
//! Memory is counted above G(t), the parameter gradients that exist when the window's backward pass starts. So
//! C(s,j-1,m) becomes C(s,j-1, m - (G(j-1) - G(t))), and a window's row depends only on its own stages.
//!
//! C(s,t,.) is a decreasing step function. Its row keeps at most one step per slot of memory: the fastest schedule that
//! needs less than the slot's end, with its need in exact bytes. With larger slots more steps are lost, but all steps
//! that are kept are correct. The first step of a row is the schedule that needs least, in any slot: the smallest peak of a
//! chain is exact. The content of a slot depends on no slot above it, so a table that ends at a budget has the same steps
//! below it as a larger table.
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

use std::iter::once;

use rayon::prelude::*;

use super::super::terms::Terms;
use super::super::windows::Windows;
use crate::schedule::{Action, StageId};

/// A step of C(s,t,.): a schedule of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stair {
    /// Bytes that the schedule needs: above G(t), or for the whole chain above what is always resident.
    pub(super) need: u64,
    /// Its time in seconds, rounded down; without the optimizer.
    pub(super) time: f64,
}

/// Nothing to run, nothing needed.
const NOTHING: &[Stair] = &[Stair { need: 0, time: 0.0 }];

/// C for all windows of a chain, from slot 0 to the largest.
pub(super) struct Table<'a> {
    terms: &'a Terms,
    windows: Windows,
    /// Bytes of one slot.
    width: u64,
    slots: usize,
    /// Times are multiples of this.
    unit: f64,
    /// `forwards[i]`: seconds of stages 0..i run forward.
    forwards: Vec<f64>,
    /// `plain[i]`: seconds of stages 0..i run forward and backward, the least that they take.
    plain: Vec<f64>,
    /// The steps by class of windows, the one of the least need first: each next one needs more and is faster.
    rows: Vec<Vec<Stair>>,
}

/// What is left to write of a schedule.
enum Task {
    /// The schedule of s..t that needs so many bytes.
    Window(usize, usize, u64),
    Backward(usize),
}

/// One or two rows whose steps make a step of a longer window.
#[derive(Clone, Copy)]
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
        let (mut right, mut left) = (0, 0);
        let next = |(held, row): (u64, &[Stair]), place: &mut usize, most: u64| {
            while row
                .get(*place + 1)
                .is_some_and(|step| held + step.need <= most)
            {
                *place += 1;
            }
            row[*place]
        };
        for (slot, best) in best.iter_mut().enumerate().take(end).skip(start) {
            let most = (slot as u64 + 1) * width - 1;
            let found = self.step(
                next(self.right, &mut right, most),
                next(self.left, &mut left, most),
            );
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

/// The unit of which all times are multiples.
fn unit(terms: &Terms) -> f64 {
    let all: f64 = (0..terms.nodes.len()).map(|s| terms.seconds(s)).sum();
    // A schedule runs each stage at most as often as there are stages, at most 2^11 times: sums stay below 2^53 units.
    2_f64.powf(all.log2().ceil() - 40.0).max(f64::MIN_POSITIVE)
}

impl<'a> Table<'a> {
    /// Solves the program for slots of `width` bytes each, up to the slot that contains `memory`.
    pub(super) fn solve(terms: &'a Terms, width: u64, memory: u64) -> Table<'a> {
        let mut table = Table {
            terms,
            windows: Windows::new(terms),
            width,
            slots: (memory / width) as usize + 1,
            unit: unit(terms),
            forwards: vec![0.0],
            plain: vec![0.0],
            rows: Vec::new(),
        };
        for (i, node) in terms.nodes.iter().enumerate() {
            let forward = table.rounded(node.forward_s.0);
            let seconds = table.rounded(terms.seconds(i));
            table.forwards.push(table.forwards[i] + forward);
            table.plain.push(table.plain[i] + seconds);
        }
        for length in 0..terms.nodes.len() {
            let starts = table.windows.representatives(length).par_iter();
            let rows: Vec<Vec<Stair>> = starts.map(|&s| table.solved(s, s + length)).collect();
            table.rows.extend(rows);
        }
        table
    }

    /// The steps for the whole chain, the one of the least need first: each next one needs more and is faster.
    pub(super) fn steps(&self) -> &[Stair] {
        self.row(0, self.terms.loss())
    }

    /// The schedule of a step: a tree over windows. A window is either split at j (forward to a_j, which is stored, then the
    /// window j..t, then s..j-1), or its first stage is recorded, the window s+1..t follows inside, and the stage's backward
    /// ends it.
    pub(super) fn schedule(&self, step: Stair) -> Vec<Action> {
        let loss = self.terms.loss();
        let forward = |k| Action::Forward(StageId(k));
        let mut actions = Vec::with_capacity(4 * loss);
        // An explicit stack: windows nest as deep as the chain is long.
        let mut tasks = vec![Task::Window(0, loss, step.need)];
        while let Some(task) = tasks.pop() {
            match task {
                Task::Backward(s) => actions.push(Action::Backward(StageId(s))),
                Task::Window(s, _, _) if s == loss => actions.push(Action::Loss),
                Task::Window(s, t, need) => {
                    let (j, right, left) = self.choice(s, t, need);
                    if j == s {
                        actions.push(forward(s));
                        tasks.push(Task::Backward(s));
                        if s < t {
                            tasks.push(Task::Window(s + 1, t, right));
                        }
                    } else {
                        actions.extend((s..j).map(forward));
                        tasks.push(Task::Window(s, j - 1, left));
                        tasks.push(Task::Window(j, t, right));
                    }
                }
            }
        }
        actions.push(Action::Optimize);
        actions
    }

    fn rounded(&self, seconds: f64) -> f64 {
        (seconds / self.unit).floor() * self.unit
    }

    fn row(&self, s: usize, t: usize) -> &[Stair] {
        &self.rows[self.windows.of(s, t)]
    }

    /// s recorded before the rest of s..t.
    fn recorded(&self, s: usize, t: usize) -> Parts<'_> {
        Parts {
            time: self.rounded(self.terms.seconds(s)),
            least: self.terms.all(s, t),
            // If nothing is inside, all(s,s) counts X.
            right: if s < t {
                (self.terms.nodes[s].saved_bytes.0, self.row(s + 1, t))
            } else {
                (0, NOTHING)
            },
            left: (0, NOTHING),
        }
    }

    /// What a schedule of s..t begins with: recording s, which is listed as j = s, or a split, by rising j.
    fn ways(&self, s: usize, t: usize) -> impl Iterator<Item = (usize, Parts<'_>)> {
        let terms = self.terms;
        let mut forwards = 0;
        let splits = (s + 1..=t).map(move |j| {
            forwards = forwards.max(terms.forward_peak(j - 1, j - 1 == s));
            let grads = terms.later_grads[j - 1] - terms.later_grads[t];
            let parts = Parts {
                time: self.forwards[j] - self.forwards[s],
                least: terms.y[t + 1] + forwards,
                right: (terms.x[j], self.row(j, t)),
                left: (grads, self.row(s, j - 1)),
            };
            (j, parts)
        });
        once((s, self.recorded(s, t))).chain(splits)
    }

    /// The row of s..t, from those of shorter windows.
    fn solved(&self, s: usize, t: usize) -> Vec<Stair> {
        let none = |need| Stair {
            need,
            time: f64::INFINITY,
        };
        let (mut leanest, mut best) = (none(u64::MAX), vec![none(0); self.slots]);
        let mut end = self.slots;
        let plain = self.plain[t + 1] - self.plain[s];
        // Recording comes first: it is nearly always the best, and allows most splits to be skipped.
        for (_, parts) in self.ways(s, t) {
            while end > 0 && best[end - 1].time <= parts.time + plain {
                end -= 1;
            }
            if parts.least <= leanest.need {
                let step = parts.within(parts.need().min(leanest.need));
                let step = step.map(|(right, left)| parts.step(right, left));
                let leaner = |one: &Stair| (one.need, one.time) < (leanest.need, leanest.time);
                leanest = step.filter(leaner).unwrap_or(leanest);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use crate::chain::{Chain, Stage};
    use crate::graph::{Simulated, Stages, simulate};
    use crate::seconds::Seconds;

    /// What a schedule takes on the graph of its chain.
    fn simulated(chain: &Chain, schedule: &[Action]) -> Simulated {
        let (graph, stages) = Stages::of_chain(chain);
        let program = stages.program(&graph, schedule).expect("a program");
        simulate(&graph, &program)
    }

    /// `stages` stages of `kinds` kinds that repeat, with times of whole seconds and sizes of up to about 20 units.
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
            stages: kinds.into_iter().cycle().take(stages).collect(),
            ..Chain::default()
        }
    }

    /// C(s,t,m) directly by the recurrence in the module's header, for every number of bytes.
    fn plain(terms: &Terms, most: usize) -> Vec<Vec<Vec<Option<f64>>>> {
        let n = terms.nodes.len();
        let mut table = vec![vec![Vec::<Option<f64>>::new(); n]; n];
        let bytes = |size: u64| size as usize;
        for length in 0..n {
            for s in 0..n - length {
                let t = s + length;
                let at = |m: usize| {
                    let mut best: Option<f64> = None;
                    let mut take =
                        |time: Option<f64>| best = best.into_iter().chain(time).reduce(f64::min);
                    let seconds = terms.seconds(s);
                    if m >= bytes(terms.all(s, t)) {
                        take(if s == t {
                            Some(seconds)
                        } else {
                            let rest = m.checked_sub(bytes(terms.nodes[s].saved_bytes.0));
                            rest.and_then(|rest| Some(seconds + table[s + 1][t][rest]?))
                        });
                    }
                    for j in s + 1..=t {
                        let forwards = (s..j).map(|k| terms.forward_peak(k, k == s)).max();
                        let null = bytes(terms.y[t + 1] + forwards.unwrap_or(0));
                        let grads = terms.later_grads[j - 1] - terms.later_grads[t];
                        let right = m.checked_sub(bytes(terms.x[j]));
                        let left = m.checked_sub(bytes(grads));
                        if let (true, Some(right), Some(left)) = (m >= null, right, left) {
                            let parts = table[j][t][right].zip(table[s][j - 1][left]);
                            let forwards: f64 = (s..j).map(|k| terms.nodes[k].forward_s.0).sum();
                            take(parts.map(|(right, left)| forwards + right + left));
                        }
                    }
                    best
                };
                table[s][t] = (0..=most).map(at).collect();
            }
        }
        table
    }

    fn agrees(chain: &Chain, most: u64) {
        let terms = Terms::new(chain);
        let table = Table::solve(&terms, 1, most);
        let expected = plain(&terms, most as usize);
        let n = terms.nodes.len();
        for (s, t) in (0..n).flat_map(|t| (0..=t).map(move |s| (s, t))) {
            for (memory, &expected) in expected[s][t].iter().enumerate() {
                let found = within(table.row(s, t), memory as u64);
                assert_eq!(
                    found.map(|step| step.time),
                    expected,
                    "stages {s}..{t} within {memory} bytes"
                );
            }
        }
    }

    #[test]
    fn different_stages_agree_with_the_plain_recurrence() {
        agrees(&chain(37, 37, 1), 200);
    }

    #[test]
    fn repeating_stages_agree_with_the_plain_recurrence() {
        agrees(&chain(41, 3, 1), 200);
    }

    /// Needs are exact for any slots: the simulator of graphs says the same.
    #[test]
    fn steps_need_what_the_simulator_says() {
        for (stages, kinds) in [(40, 40), (40, 3), (7, 7)] {
            let chain = chain(stages, kinds, 1_000_003);
            let terms = Terms::new(&chain);
            for width in [700_001, 9_000_001, 60_000_000] {
                let table = Table::solve(&terms, width, 1 << 30);
                assert!(!table.steps().is_empty());
                for &step in table.steps() {
                    let run = simulated(&chain, &table.schedule(step));
                    assert_eq!(run.peak - chain.resident_bytes(), Bytes(step.need));
                    // Whole numbers of seconds, which are exact.
                    assert_eq!(run.time.0, step.time);
                }
            }
        }
    }

    /// The steps below a budget do not depend on where the table ends.
    #[test]
    fn a_shorter_table_has_the_same_steps() {
        let chain = chain(50, 50, 1_000_003);
        let terms = Terms::new(&chain);
        let solve = |memory| Table::solve(&terms, 5_000_000, memory);
        let whole = solve(1 << 30);
        for memory in [100_000_000, 200_000_000, 400_000_000] {
            let shorter = solve(memory);
            assert!(!shorter.steps().is_empty());
            assert_eq!(shorter.steps(), &whole.steps()[..shorter.steps().len()]);
        }
    }
}
