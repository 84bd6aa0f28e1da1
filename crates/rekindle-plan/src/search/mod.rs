//! The search for the fastest program of a graph within a budget.
//!
//! A program is a list of runs, in which a recompute stands again (Jain et al. 2020, Checkmate, arXiv 1910.02653; Bartan et
//! al. 2023, Moccasin, arXiv 2304.14463, whose retention intervals follow here from the runs). The list alone is the state:
//! where each value is freed, and with it the peak, follows from it and is kept up to date ([`runs`]).
//!
//! 1. **Fit** ([`fit`]): from the recorded order, and from a few programs over stages (without these, plans of deep chains in a
//!    third of their peak are twice as slow), evict at the highest moment until the budget is met. An evicted value is made
//!    again directly before its next read, with the closure of what that needs, or comes back from the host.
//! 2. **Prune**: leave out each run that the budget allows to leave out.
//! 3. **Improve**: ruin and recreate (Schrimpf et al. 2000, J. Computational Physics 159) with simulated annealing: a round takes
//!    out some runs near each other, or moves some to where their inputs and readers allow, fits the program again with
//!    chance in the scores, and prunes what it touched. A slower program is kept with a probability that falls.
//!
//! Where 1 ends above the budget, such rounds lower the bytes above the budget first, whatever the time. The program with the
//! smallest peak is found in the same way, by halving the budgets between its lower bound and the recorded peak, with equal
//! times of all operations, so that measurements do not change it.
//!
//! Random numbers are the same in every run, and rounds end after a count of the work done, not by a clock: the same graph
//! gives the same program everywhere. One eviction costs O(values near the moment, times the closures examined), one change
//! of a run O(degree log n).
//!
//! What it does not do: prove a program optimal, split operations, or overlap transfers with computation.

mod fit;
mod net;
mod random;
mod runs;

use crate::bytes::Bytes;
use crate::graph::{Found, Graph, GraphError};
use fit::{Choice, Fit};
use net::{NONE, Net};
use random::Random;
use runs::{Change, Runs, bucket, key};

/// The work of a search for each operation, and at most: about half a second.
const WORK_OF_ONE: u64 = 50_000;
const MOST_WORK: u64 = 20_000_000;
/// Number of times the interval of budgets is halved for the smallest peak.
const HALVINGS: u32 = 10;
/// Steps down from the smallest peak of the halvings, each by at least this share.
const DESCENTS: u32 = 20;
const DESCENT: f64 = 0.002;
/// The share of the work that each halving, and each step down, may do. All steps but the last succeed, soon.
const HALVING_PART: u64 = 10;
const DESCENT_PART: u64 = 2;
/// Evictions of one round, at most.
const ROUND: usize = 60;
/// How often the smallest peak is searched from other random numbers, where it is above a budget by less than this factor.
const SEEDS: u64 = 4;
const NEAR: f64 = 1.25;

/// The most bytes on the device and of copies on the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) device: i64,
    pub(super) host: i64,
}

/// The fastest program found within a budget, with at most so many bytes of copies on the host, starting from the recorded
/// order and from other programs; or the one found with the smallest peak, if none fits.
pub(crate) fn within(
    graph: &Graph,
    budget: Bytes,
    host: Bytes,
    starts: &[Found],
    effort: u32,
) -> Result<Result<Found, Box<Found>>, GraphError> {
    let net = Net::new(graph)?;
    let found = |order: &[u32]| -> Result<Found, GraphError> {
        Ok(Found::of(graph, &net.program(graph, order)?))
    };
    let bytes = |bytes: Bytes| bytes.0.min(i64::MAX as u64) as i64;
    let all = Room {
        device: bytes(budget),
        host: bytes(host),
    };
    let orders = starts.iter().map(|start| net.order(&start.program));
    let orders: Vec<Vec<u32>> = orders.collect();
    let mut room = all;
    // A view that runs again, or an update that waits for one, may take more than the search has counted.
    for _ in 0..3 {
        let Some(order) = Search::new(&net, effort).within(room, &orders) else {
            break;
        };
        let found = found(&order)?;
        if found.peak() <= budget {
            return Ok(Ok(found));
        }
        room.device -= bytes(found.peak() - budget);
    }
    let even = net.even();
    let mut smallest = Search::new(&even, 1).smallest(&orders, all.host);
    let mut leanest = found(&smallest)?;
    // What chance has missed by a little, it may find from other numbers: a budget that was named once is met again.
    for seed in 1..SEEDS {
        let near = Bytes((budget.0 as f64 * NEAR) as u64);
        if leanest.peak() <= budget || leanest.peak() > near {
            break;
        }
        let mut search = Search::new(&even, 1);
        search.random = Random(seed);
        let other = search.smallest(&orders, all.host);
        let other_found = found(&other)?;
        if other_found.peak() < leanest.peak() {
            (smallest, leanest) = (other, other_found);
        }
    }
    if leanest.peak() > budget {
        return Ok(Err(Box::new(leanest)));
    }
    let improved = Search::new(&net, effort).within(all, &[smallest]);
    let improved = improved.map(|order| found(&order)).transpose()?;
    let improved = improved.filter(|found| found.peak() <= budget);
    Ok(Ok(improved.unwrap_or(leanest)))
}

struct Search<'a> {
    net: &'a Net,
    runs: Runs<'a>,
    fit: Fit,
    random: Random,
    /// How much work improving may take.
    work: u64,
}

impl<'a> Search<'a> {
    fn new(net: &'a Net, effort: u32) -> Search<'a> {
        Search {
            net,
            runs: Runs::of(net, &Runs::recorded(net), 0),
            fit: Fit::new(net),
            random: Random(0x9E37_79B9_7F4A_7C15),
            work: u64::from(effort) * MOST_WORK.min(WORK_OF_ONE * net.ranks as u64),
        }
    }

    /// Continues with other runs.
    fn restart(&mut self, order: &[u32]) {
        self.runs = Runs::of(self.net, order, self.runs.work);
    }

    /// The order of the fastest program that is found, starting from the recorded order and from others.
    fn within(&mut self, room: Room, others: &[Vec<u32>]) -> Option<Vec<u32>> {
        if self.fit.floor(self.net) > room.device {
            return None;
        }
        let recorded = Runs::recorded(self.net);
        let mut best: Option<(f64, Vec<u32>)> = None;
        for start in std::iter::once(&recorded).chain(others) {
            self.restart(start);
            let all = 40 * self.net.ranks + 100;
            if self.fit(room, Choice::default(), all) {
                self.prune_all(room);
                if best.as_ref().is_none_or(|best| self.runs.seconds < best.0) {
                    best = Some((self.runs.seconds, self.runs.order()));
                }
            }
        }
        match best {
            Some((_, order)) => self.restart(&order),
            None => {
                self.restart(&recorded);
                if !self.descend(room, self.work / DESCENT_PART) {
                    return None;
                }
                self.prune_all(room);
            }
        }
        Some(self.improve(room, self.work))
    }

    /// The order of the program that is found with the smallest peak, starting from the recorded order or another one.
    fn smallest(&mut self, starts: &[Vec<u32>], host: i64) -> Vec<u32> {
        let mut best = self.runs.order();
        let mut least = self.runs.peak();
        for start in starts {
            self.restart(start);
            if self.runs.peak() < least && self.runs.host_peak() <= host {
                (least, best) = (self.runs.peak(), start.clone());
            }
        }
        let mut low = self.fit.floor(self.net);
        for _ in 0..HALVINGS {
            if low >= least {
                break;
            }
            let device = low + (least - low) / 2;
            self.restart(&best);
            match self.descend(Room { device, host }, self.work / HALVING_PART) {
                true => (least, best) = (self.runs.peak(), self.runs.order()),
                false => low = device + 1,
            }
        }
        let floor = self.fit.floor(self.net);
        for _ in 0..DESCENTS {
            if least <= floor {
                break;
            }
            let step = ((least - self.net.fixed) as f64 * DESCENT) as i64 + 1;
            let device = (least - step).max(floor);
            self.restart(&best);
            if !self.descend(Room { device, host }, self.work / DESCENT_PART) {
                break;
            }
            (least, best) = (self.runs.peak(), self.runs.order());
        }
        // The list of a program takes memory, too.
        self.restart(&best);
        let room = Room {
            device: least,
            host,
        };
        self.prune_all(room);
        self.improve(room, self.work / HALVING_PART)
    }

    fn fit(&mut self, room: Room, choice: Choice, limit: usize) -> bool {
        self.fit
            .fit(&mut self.runs, room, choice, &mut self.random, limit)
    }

    /// How the evictions of a round are chosen.
    fn choice(&mut self, most_lenient: usize, coins: f64) -> Choice {
        let coins = if self.random.chance(coins) {
            self.random.next()
        } else {
            0
        };
        Choice {
            coins,
            noise: 2.0 * self.random.share(),
            lenient: self.random.below(most_lenient),
        }
    }

    /// Lowers the bytes above the room until there are none, with at most so much work.
    fn descend(&mut self, room: Room, work: u64) -> bool {
        let end = self.runs.work + work;
        self.fit(room, Choice::default(), 1000);
        self.runs.changes.clear();
        let mut over = self.runs.overflow(room);
        while over > 0 && self.runs.work < end {
            let before = self.runs.seconds;
            self.change();
            let choice = self.choice(6, 0.5);
            self.fit(room, choice, ROUND);
            let mut now = self.runs.overflow(room);
            let most = over as f64 * (1.0 + 0.1 * self.random.share().powi(4));
            if now as f64 <= most {
                self.prune_changed(|runs| {
                    let pruned = runs.overflow(room);
                    let keep = pruned <= now;
                    now = now.min(pruned);
                    keep
                });
            }
            if now < over || now as f64 <= most && self.runs.seconds <= before * 1.01 {
                over = now;
                self.runs.changes.clear();
            } else {
                self.runs.undo(0);
            }
        }
        over == 0
    }

    /// Improves a program that fits by annealing, with so much work, and returns the order of the best.
    fn improve(&mut self, room: Room, work: u64) -> Vec<u32> {
        let plain: f64 = self
            .net
            .ops
            .iter()
            .filter(|op| !op.transfer)
            .map(|op| op.seconds)
            .sum();
        let mut best = (self.runs.seconds, self.runs.order());
        self.runs.changes.clear();
        let (begin, end) = (self.runs.work, self.runs.work + work);
        while self.runs.work < end && self.runs.seconds > plain * (1.0 + 1e-12) {
            let left = (end - self.runs.work) as f64 / (end - begin) as f64;
            let again = self.runs.count().saturating_sub(self.net.ranks);
            let over = (self.runs.seconds - plain).max(1e-12 * plain);
            let heat = 0.15 * left.powi(2) / (1 + again / 2) as f64 * over + 1e-15 * plain;
            let before = self.runs.seconds;
            let fits = self.round(room);
            let worse = self.runs.seconds - before;
            if fits && (worse <= 0.0 || self.random.chance((-worse / heat).exp())) {
                self.runs.changes.clear();
                if self.runs.seconds < best.0 - 1e-12 * plain {
                    best = (self.runs.seconds, self.runs.order());
                }
            } else {
                self.runs.undo(0);
            }
        }
        best.1
    }

    /// Changes the program, and makes it fit again. Whether it does.
    fn round(&mut self, room: Room) -> bool {
        self.change();
        let choice = self.choice(4, 0.3);
        if !self.fit(room, choice, ROUND) {
            return false;
        }
        self.prune_changed(|runs| runs.fits(room));
        true
    }

    /// Takes some runs out, or moves some.
    fn change(&mut self) {
        self.runs.work += ROUND as u64;
        if self.random.chance(0.4) {
            for _ in 0..=self.random.below(3) {
                self.shift();
            }
        }
        if self.runs.changes.is_empty() || self.random.chance(0.3) {
            self.ruin();
        }
    }

    /// Takes out some runs near each other that the recorded order does not have.
    fn ruin(&mut self) {
        let Some(center) = self.extra() else {
            return;
        };
        let ranks = self.net.ranks;
        let width = 1_usize << self.random.below((ranks.ilog2() as usize).max(3));
        let most = 1 + self.random.below(12);
        let mut near: Vec<u32> = Vec::new();
        if self.random.chance(0.5) {
            let rank = self.runs.op(center).rank as usize;
            let ops = rank.saturating_sub(width)..(rank + width + 1).min(ranks - 1);
            for op in ops {
                near.extend(self.runs.runs_of(op as u32));
                for &value in &self.net.ops[op].outputs {
                    let of = &self.net.values[value as usize];
                    let transfers = [of.fetch, of.offload].into_iter();
                    let transfers = transfers.filter(|&transfer| transfer != NONE);
                    near.extend(transfers.flat_map(|op| self.runs.runs_of(op)));
                }
            }
        } else {
            let at = bucket(self.runs.key(center));
            let buckets = at.saturating_sub(width)..(at + width + 1).min(ranks);
            near.extend(self.runs.buckets[buckets].iter().flatten());
        }
        near.retain(|&run| self.runs.is_extra(run));
        self.runs.work += near.len() as u64 / 4;
        let first = self.random.below(near.len());
        near.rotate_left(first);
        let mut ruined = 0;
        for run in near {
            if ruined < most && self.random.chance(0.6) && self.runs.removable(run) {
                self.runs.remove(run);
                ruined += 1;
            }
        }
    }

    /// A run that the recorded order does not have, if one is found.
    fn extra(&mut self) -> Option<u32> {
        if self.runs.count() <= self.net.ranks {
            return None;
        }
        (0..1000).find_map(|_| {
            let run = self.random.below(self.runs.runs.len()) as u32;
            (self.runs.is_there(run) && self.runs.is_extra(run)).then_some(run)
        })
    }

    /// Moves a run to another place between its inputs and its readers.
    fn shift(&mut self) {
        let ranks = self.net.ranks;
        let at = if self.random.chance(0.6) {
            let width = 1 << self.random.below(ranks.ilog2() as usize);
            let near = self.fit.spot + self.random.below(2 * width + 1);
            near.saturating_sub(width).min(ranks - 1)
        } else {
            self.random.below(ranks)
        };
        if self.runs.buckets[at].is_empty() {
            return;
        }
        let place = self.random.below(self.runs.buckets[at].len());
        let run = self.runs.buckets[at][place];
        let (op, from) = (self.runs.runs[run as usize].op, self.runs.key(run));
        let of = self.runs.op(run);
        if of.fixed {
            return;
        }
        let inputs = of.inputs.iter();
        let made = inputs.filter_map(|&value| self.runs.made_before(value, from));
        let made = made.chain(self.runs.before(op, from));
        let low = made.map(|run| self.runs.key(run) + 1).max().unwrap_or(0);
        let reads = of
            .outputs
            .iter()
            .map(|&value| self.runs.next_read(value, from));
        let update = (of.before != NONE).then(|| self.runs.next_run(of.before, from));
        let last = key(
            ranks as u32 - 1,
            self.runs.buckets[ranks - 1].len() as u32 - 1,
        );
        let high = reads.chain(update).min().unwrap_or(last).min(last);
        if high <= low {
            return;
        }
        let target = bucket(low) + self.random.below(bucket(high) - bucket(low) + 1);
        let first = if target == bucket(low) { low as u32 } else { 0 };
        let end = match target == bucket(high) {
            true => high as u32,
            false => self.runs.buckets[target].len() as u32,
        };
        if end < first {
            return;
        }
        let to = key(
            target as u32,
            first + self.random.below((end - first) as usize + 1) as u32,
        );
        // What may not run twice must be free to leave its place.
        let once = of.repeatable
            || self.runs.before(op, from).is_none() && self.runs.unread(run, to.max(from));
        if to == from || to == from + 1 || !once {
            return;
        }
        self.runs.insert(op, to);
        if self.runs.removable(run) {
            self.runs.remove(run);
        }
        self.fit.spot = target;
    }

    fn prune_all(&mut self, room: Room) {
        let runs = self.runs.buckets.iter().flatten().copied();
        let extra = runs.filter(|&run| self.runs.is_extra(run)).collect();
        self.prune(extra, |runs| runs.fits(room));
        self.runs.changes.clear();
    }

    /// Prunes what has been inserted, and a few others.
    fn prune_changed(&mut self, keep: impl FnMut(&Runs<'_>) -> bool) {
        let changes = self.runs.changes.iter();
        let inserted = changes.filter_map(|change| match change {
            Change::Inserted(op, _) => Some(*op),
            Change::Removed(..) => None,
        });
        let mut ops: Vec<u32> = inserted.collect();
        for _ in 0..6 {
            ops.push(self.random.below(self.net.ops.len()) as u32);
        }
        ops.sort_unstable();
        ops.dedup();
        let runs = ops.iter().flat_map(|&op| self.runs.runs_of(op));
        let extra = runs.copied().filter(|&run| self.runs.is_extra(run));
        let extra = extra.collect();
        self.prune(extra, keep);
    }

    /// Leaves out runs, in a random order, where the program without them can be kept.
    fn prune(&mut self, mut runs: Vec<u32>, mut keep: impl FnMut(&Runs<'_>) -> bool) {
        for last in (1..runs.len()).rev() {
            runs.swap(last, self.random.below(last + 1));
        }
        for run in runs {
            if !self.runs.is_there(run) || !self.runs.removable(run) {
                continue;
            }
            let before = self.runs.changes.len();
            self.runs.remove(run);
            if !keep(&self.runs) {
                self.runs.undo(before);
            }
        }
    }
}
