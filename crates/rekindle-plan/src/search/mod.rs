//! The search for the fastest program of a graph within a budget.
//!
//! A program is a list of runs, in which a recompute stands again (Jain et al. 2020, Checkmate, arXiv 1910.02653; Bartan et
//! al. 2023, Moccasin, arXiv 2304.14463, whose retention intervals follow here from the runs). The list alone is the state:
//! where each value is freed, and with it the peak, follows from it and is kept up to date ([`runs`]).
//!
//! 1. **Fit** ([`fit`]): from the recorded order, and from a few programs over stages (without these, plans of deep chains in a
//!    third of their peak are twice as slow), evict at the highest moment until the budget is met. An evicted value is made
//!    again directly before its next read, with the closure of what that needs, or comes back from the host, or that read moves
//!    before the moment. All evictions are weighed, and the best of them take away a part of what is above the budget at this
//!    moment before they are weighed anew. A start is left whose program takes much longer than those before it.
//! 2. **Prune**: leave out each run that the budget allows to leave out.
//! 3. **Anneal**: ruin and recreate (Schrimpf et al. 2000, J. Computational Physics 159) with simulated annealing: a round takes
//!    out some runs near each other, may move some to where their inputs and readers allow, or back to where they were recorded,
//!    fits the program again, blind to evictions by chance, and prunes what it touched. A slower program is kept with a
//!    probability that falls. As long as there are bytes above the budget, rounds lower these first. Each further turn fits
//!    the recorded order, blind to evictions by chance (Feo & Resende 1995, J. Global Optimization 6), and anneals that.
//!
//! The program with the smallest peak is found in the same way, in steps down from the peak of a program over stages.
//!
//! Random numbers are the same in every run, and fits and rounds end after a count of the work done, not by a clock: the same
//! graph gives the same program again, and planning ends, also where evictions make others necessary without end. One eviction
//! costs O(values near the moment, times the closures examined), one change of a run O(degree log n + length of its bucket).
//!
//! What it does not do: prove a program optimal, split operations, or overlap transfers with computation.

mod fit;
mod net;
mod runs;
#[cfg(test)]
#[path = "../../tests/internals/runs.rs"]
mod tests;

use std::collections::BTreeSet;

use rand::Rng;
use rand::seq::{IndexedRandom, SliceRandom};

use crate::graph::{Graph, GraphPlan, Link, OperationId, PlanError};
use crate::request::Request;
use fit::Search;
use net::Net;
use runs::{Room, Runs, bucket, key};

/// The work of a turn for each operation, and of a search: about a quarter of a second, and up to four times that for small graphs.
const WORK_OF_ONE: u64 = 150_000;
const MOST_WORK: u64 = 14_000_000;
/// At least so much for each operation where the smallest peak is searched, as far as one start may do it.
const STEPS_OF_ONE: u64 = 5_000;
/// Steps to smaller peaks are halved where one fails, down to this share of the peak.
const LEAST_STEP: f64 = 0.002;
/// The share of the work that each step may do.
const STEP_PART: u64 = 10;
/// The work of one start's fit, at most: four times what any fit of a step of 10,000 operations takes that succeeds.
const START_WORK: u64 = 40_000_000;
/// Where a start was fit, others end whose programs take so many times its time.
const SLOWER: f64 = 1.25;
/// Evictions of one round, at most; the chance that it does not look at one is up to `MOST_BLINKS`, and fewer than
/// `MOST_LENIENT` may take nothing away.
const ROUND: usize = 60;
const MOST_BLINKS: f64 = 0.6;
const MOST_LENIENT: usize = 4;

/// The fastest plan that is found within the budget of a request, or else the one with the smallest peak, each from some
/// starts. Without a link nothing moves to the host. Where the smallest peak is searched, all operations take the same time:
/// a budget that was named once is met again, whatever else is measured.
pub(crate) fn search(
    graph: &Graph,
    request: &Request,
    link: Option<&Link>,
    starts: &[Vec<OperationId>],
    start_of_smallest: impl FnOnce() -> Result<Vec<OperationId>, PlanError>,
) -> Result<GraphPlan, PlanError> {
    let mut net = Net::new(graph, link)?;
    let room = Room {
        device: request.most_bytes().signed() - graph.fixed_bytes.signed(),
        host: link.map_or(0, |link| link.host_bytes.signed()),
    };
    let ranks = net.ranks as u64;
    let quarter = MOST_WORK.min(WORK_OF_ONE * ranks);
    let work = quarter * (1000 / ranks).clamp(1, 4) * u64::from(request.effort.max(1));
    let within = |net: &Net<'_>, start: &dyn Fn(usize) -> Option<Vec<u32>>| {
        let mut room = room;
        // A view that runs again, or an update that waits for one, may take more than the search has counted.
        for _ in 0..3 {
            let Some(order) = Search::new(net, room, work).within(start) else {
                break;
            };
            let plan = net.plan(&order)?;
            let over = plan.simulated.peak - request.most_bytes();
            if over.is_zero() {
                return Ok(Some(plan));
            }
            room.device -= over.signed();
        }
        Ok::<_, PlanError>(None)
    };
    let start = |number: usize| Some(net.order(starts.get(number)?));
    if let Some(plan) = within(&net, &start)? {
        return Ok(plan);
    }
    let start = net.order(&start_of_smallest()?);
    net.ops.iter_mut().for_each(|op| op.seconds = 1.0);
    let most = quarter.max(START_WORK.min(STEPS_OF_ONE * ranks));
    let leanest = Search::new(&net, room, most).smallest(start);
    let plan = net.plan(&leanest)?;
    if plan.simulated.peak > request.most_bytes() {
        return Ok(plan);
    }
    let net = Net::new(graph, link)?;
    Ok(within(&net, &|number| (number == 0).then(|| leanest.clone()))?.unwrap_or(plan))
}

impl Search<'_> {
    /// The order of the fastest program that is found, from starts that are asked for until there is none.
    fn within(&mut self, start: &dyn Fn(usize) -> Option<Vec<u32>>) -> Option<Vec<u32>> {
        if self.floor() > self.room.device {
            return None;
        }
        let (net, work) = (self.net, self.work);
        let mut best = net.recorded();
        for start in (0..).map_while(start) {
            let quick = net.seconds(&start) <= self.most_seconds && self.fitted(&start, 0.0);
            if quick && SLOWER * self.runs.seconds < self.most_seconds {
                (self.most_seconds, best) = (SLOWER * self.runs.seconds, self.runs.order());
            }
        }
        self.most_seconds = f64::INFINITY;
        let turns = (work / (WORK_OF_ONE * net.ranks as u64)).max(1);
        let found = (0..turns).filter_map(|turn| {
            let blinks = (turn > 0).then(|| MOST_BLINKS * self.random.random::<f64>());
            if !blinks.is_some_and(|blinks| self.fitted(&net.recorded(), blinks)) {
                self.start(&best);
            }
            self.anneal(work / turns, false)
        });
        found.min_by(|one, other| net.seconds(one).total_cmp(&net.seconds(other)))
    }

    /// Fits and prunes the program of a list of operations, blind to evictions by a chance. Whether that succeeds.
    fn fitted(&mut self, start: &[u32], blinks: f64) -> bool {
        self.start(start);
        self.blinks = blinks;
        let fits = self.fit(usize::MAX, START_WORK);
        self.blinks = 0.0;
        if fits {
            self.prune(self.runs.extra(), 0.0);
        }
        fits
    }

    /// The order of the program that is found with the smallest peak, from another one.
    fn smallest(&mut self, mut best: Vec<u32>) -> Vec<u32> {
        self.start(&best);
        let mut least = self.runs.peak();
        let floor = self.floor();
        let mut step = (least - floor) / 2;
        let mut left = self.work;
        while least > floor && left > 0 {
            step = step.max((least as f64 * LEAST_STEP) as i64 + 1);
            self.room.device = (least - step).max(floor);
            self.start(&best);
            let found = self.anneal(left.min(self.work / STEP_PART), true);
            left = left.saturating_sub(self.runs.work);
            match found {
                Some(order) => (least, best) = (self.runs.peak(), order),
                None => step /= 2,
            }
        }
        // The list of a program takes memory, too.
        self.start(&best);
        self.room.device = least;
        self.prune(self.runs.extra(), 0.0);
        self.anneal(self.work / STEP_PART, false).unwrap_or(best)
    }

    /// Becomes the search from a list of operations; of the one before nothing stays in memory.
    fn start(&mut self, order: &[u32]) {
        self.runs = Runs::of(self.net, &[]);
        self.runs = Runs::of(self.net, order);
    }

    /// Changes some runs, fits the program again, and prunes what that inserted unless more bytes are above the room than
    /// these. Returns those that are.
    fn round(&mut self, most: f64) -> f64 {
        // Often none.
        for _ in 0..self.random.random_range(-3..=5) {
            self.shift();
        }
        self.ruin();
        self.runs.settle();
        self.runs.work += ROUND as u64;
        self.blinks = MOST_BLINKS * self.random.random::<f64>();
        self.lenient = self.random.random_range(0..MOST_LENIENT);
        self.fit(ROUND, self.work);
        (self.blinks, self.lenient) = (0.0, 0);
        let over = self.over(most);
        if over > most {
            return over;
        }
        let inserted = self.runs.changes.iter().filter(|change| change.inserted);
        let ops: BTreeSet<u32> = inserted.map(|change| change.op).collect();
        let runs = ops.iter().flat_map(|&op| &self.runs.of[op as usize]);
        let extra = runs.copied().filter(|&run| self.runs.is_extra(run));
        self.prune(extra.collect(), over);
        self.over(over)
    }

    /// The bytes above the room; none are as good as too many where there shall be none.
    fn over(&self, most: f64) -> f64 {
        match self.fits() {
            true => 0.0,
            false if most == 0.0 => f64::INFINITY,
            false => self.runs.overflow(self.room),
        }
    }

    /// Lowers the bytes above the room, and then the time by annealing, with so much work, or until the program fits if only
    /// that is asked. Returns the order of the fastest program that fits.
    fn anneal(&mut self, work: u64, first: bool) -> Option<Vec<u32>> {
        let plain = self.net.seconds(&self.net.recorded());
        let mut best = (f64::INFINITY, None);
        let end = self.runs.work + work;
        self.fit(usize::MAX, work);
        self.runs.changes.clear();
        let mut over = self.runs.overflow(self.room);
        loop {
            let before = self.runs.seconds;
            if over == 0.0 && before < best.0 - 1e-12 * plain {
                best = (before, Some(self.runs.order()));
            }
            let done = over == 0.0 && (first || best.0 <= plain * (1.0 + 1e-12));
            if done || self.runs.work >= end {
                return best.1;
            }
            let left = (end - self.runs.work) as f64 / work as f64;
            let heat = (0.3 * left.powi(2) / self.net.ranks as f64 + 1e-15) * plain;
            let most = over * (1.0 + 0.1 * self.random.random::<f64>().powi(4));
            let now = self.round(most);
            let worse = self.runs.seconds - before;
            let keep = match over > 0.0 {
                true => now < over || now <= most && worse <= 0.01 * before,
                false if now > 0.0 => false,
                false => worse <= 0.0 || self.random.random_bool((-worse / heat).exp()),
            };
            if keep {
                over = now;
                self.runs.changes.clear();
            } else {
                self.runs.undo(0);
            }
        }
    }

    /// Takes out some runs near each other that the recorded order does not have.
    fn ruin(&mut self) {
        let extra = self.runs.extra();
        let first = self.random.random_range(0..extra.len().max(1));
        let chance = self.random.random::<f64>().powi(3);
        let mut left = self.random.random_range(1..13);
        for &run in &extra[first..] {
            if left > 0 && self.random.random_bool(chance) && self.runs.removable(run) {
                self.runs.remove(run);
                left -= 1;
            }
        }
    }

    /// Lets some operations from a place on run where they were recorded.
    fn restore(&mut self, first: usize) {
        let end = first + self.random.random_range(1..13);
        for op in first..end.min(self.net.ranks) {
            let recorded = key(op as u32, self.runs.buckets[op].len() as u32);
            let mut inputs = self.net.ops[op].inputs.iter();
            if let Some(&run) = self.runs.of[op].first()
                && self.runs.key(run) >= recorded
                && inputs.all(|&value| self.runs.made_before(value, recorded).is_some())
            {
                self.runs.relocate(run, recorded);
            }
        }
    }

    /// Moves a run near a place to another between its inputs and its readers, or lets some operations run where they were
    /// recorded.
    fn shift(&mut self) {
        let last = self.net.ranks - 1;
        let width = 1 << self.random.random_range(0..last.max(2).ilog2());
        let near = self.spot + self.random.random_range(0..=2 * width);
        let near = match self.random.random_bool(0.6) {
            true => near.saturating_sub(width).min(last),
            false => self.random.random_range(0..=last),
        };
        if self.random.random_bool(0.3) {
            return self.restore(near);
        }
        let run = self.runs.buckets[near].choose(&mut self.random);
        let Some(&run) = run.filter(|&&run| !self.runs.op(run).fixed) else {
            return;
        };
        let (of, from) = (self.runs.op(run), self.runs.key(run));
        let low = self.runs.earliest(run);
        let reads = of.outputs.iter();
        let reads = reads.map(|&value| self.runs.next_read(value, from));
        let fixed = of.before.into_iter().chain([last as u32]);
        let fixed = fixed.map(|op| self.runs.next_run(op, from));
        let high = reads.chain(fixed).min().unwrap_or(low);
        self.spot = self.random.random_range(bucket(low)..=bucket(high));
        let most = self.runs.buckets[self.spot].len() as u32;
        let to = key(self.spot as u32, self.random.random_range(0..=most));
        self.runs.relocate(run, to.clamp(low, high));
    }

    /// Leaves out runs, in a random order, where no more bytes are above the room without them.
    fn prune(&mut self, mut runs: Vec<u32>, mut over: f64) {
        runs.shuffle(&mut self.random);
        for run in runs {
            if !self.runs.is_there(run) || !self.runs.removable(run) {
                continue;
            }
            let before = self.runs.changes.len();
            self.runs.remove(run);
            self.runs.settle();
            let now = self.over(over);
            if now <= over {
                over = now;
            } else {
                self.runs.undo(before);
            }
        }
    }
}
