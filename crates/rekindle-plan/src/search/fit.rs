//! Makes a program fit. At its highest moment, a value that is held and not read there is given up: it is made again directly
//! before its next read, with all else that must be made again for it, or comes back from a copy on the host. Of all these
//! evictions those with the best scores are made: overflow taken away (bytes times moments above the budget) per second.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::net::{Net, Op};
use super::runs::{END, Key, Room, Runs, bucket};

/// Of what is above the budget, one of so many parts is taken away by the best evictions before all are weighed anew.
const PARTS: i64 = 3;
/// The most operations that run again for one eviction.
const MOST_CLOSURE: usize = 300;

#[derive(Clone, Copy)]
struct Eviction {
    score: f64,
    /// The value, until this run reads it.
    value: u32,
    reader: u32,
    /// Whether it goes to the host, and comes back.
    offload: bool,
}

/// The state of a search.
pub(super) struct Search<'a> {
    pub(super) net: &'a Net<'a>,
    pub(super) runs: Runs<'a>,
    pub(super) room: Room,
    pub(super) random: ChaCha8Rng,
    /// The bucket near which something was changed last.
    pub(super) spot: usize,
    /// How much work improving may take.
    pub(super) work: u64,
    /// A fit ends whose program takes longer.
    pub(super) most_seconds: f64,
    /// The chance that an eviction is not looked at.
    pub(super) blinks: f64,
    /// How many evictions may still take no overflow away.
    pub(super) lenient: usize,
    /// How many buckets before each one have moments above the budget.
    over: Vec<u32>,
    /// Overflow that a second takes away.
    rate: f64,
    /// What runs again for an eviction, and whether an operation does.
    closure: Vec<u32>,
    marked: Vec<bool>,
}

impl<'a> Search<'a> {
    /// A search from the recorded order.
    pub(super) fn new(net: &'a Net<'a>, room: Room, work: u64) -> Search<'a> {
        Search {
            net,
            runs: Runs::of(net, &net.recorded()),
            room,
            random: crate::random(),
            spot: 0,
            work,
            over: vec![0; net.ranks + 1],
            most_seconds: f64::INFINITY,
            blinks: 0.0,
            lenient: 0,
            rate: 0.0,
            closure: Vec::new(),
            marked: vec![false; net.ops.len()],
        }
    }

    /// The least budget of any program that runs all recorded operations.
    pub(super) fn floor(&self) -> i64 {
        let needs = self.net.ops[..self.net.ranks].iter().map(|op| op.need);
        needs.max().unwrap_or_default()
    }

    /// How many buckets between two have moments above the budget.
    fn between(&self, from: usize, to: usize) -> f64 {
        f64::from(self.over[to] - self.over[from.min(to)])
    }

    /// Whether the program fits.
    pub(super) fn fits(&self) -> bool {
        self.runs.peak() <= self.room.device && self.runs.host_peak() <= self.room.host
    }

    /// Evicts until the program fits, at most so often and with so much work. Whether it does.
    pub(super) fn fit(&mut self, limit: usize, work: u64) -> bool {
        let end = self.runs.work.saturating_add(work);
        self.rate = self.runs.overflow(self.room) / self.runs.seconds.max(1e-12);
        for _ in 0..limit {
            let ends = self.runs.work >= end || self.runs.seconds > self.most_seconds;
            if ends || self.runs.peak() <= self.room.device {
                return self.fits();
            }
            let high = self.highest();
            let evictions = self.evictions(high);
            let Some(score) = self.evict_best(high, &evictions) else {
                return false;
            };
            self.rate = 0.5 * (self.rate + score);
        }
        false
    }

    /// Counts the moments above the budget, and returns the run of the highest.
    fn highest(&mut self) -> u32 {
        let (runs, mut count) = (&mut self.runs, 0);
        for (before, top) in self.over[1..].iter_mut().zip(runs.tops()) {
            count += u32::from(top > self.room.device);
            *before = count;
        }
        let highest = runs.tops().position(|top| top == runs.peak());
        self.spot = highest.unwrap_or_default();
        runs.work += runs.net.ranks as u64 / 4;
        runs.highest(self.spot)
    }

    /// The evictions at a moment, the best first.
    fn evictions(&mut self, high: u32) -> Vec<Eviction> {
        let at = bucket(self.runs.key(high)) as u32;
        let (mut found, mut best) = (Vec::new(), 0.0);
        for value in 0..self.net.values.len() as u32 {
            let (first, last) = self.runs.within[value as usize];
            if first <= at && at <= last {
                self.evictions_of(value, high, &mut best, &mut found);
            }
        }
        found.sort_by(|one, other| other.score.total_cmp(&one.score));
        found
    }

    /// Finds the ways to give up a value at a moment.
    fn evictions_of(&mut self, value: u32, high: u32, best: &mut f64, found: &mut Vec<Eviction>) {
        let net = self.net;
        let of = &net.values[value as usize];
        let bytes = of.bytes[0];
        let moves = net.transfers(value).filter(|_| !self.blinks());
        let runs_again = !self.blinks();
        if moves.is_none() && !runs_again {
            return;
        }
        let at = self.runs.key(high);
        let Some(made) = self.runs.made_before(value, at).filter(|_| bytes > 0) else {
            return;
        };
        self.runs.work += 1;
        if self.runs.key(self.runs.end(value, made)) <= at {
            return;
        }
        let (made_key, read) = (self.runs.key(made), self.runs.next_read(value, at));
        // What the highest operation reads is there, unless its output takes it over.
        let last = self.runs.last_read(value, made_key, at + 1);
        let taken = last == Some(high);
        if taken && self.runs.op(high).reuses != Some(value) {
            return;
        }
        let from = bucket(last.map_or(made_key, |last| self.runs.key(last))) + usize::from(!taken);
        let gain = bytes as f64 * self.between(from, bucket(read)).max(1.0);
        let tiny = 1e-9 * self.runs.seconds + 1e-15;
        let reader = self.runs.at(read);
        let mut add = |seconds: f64, held: i64, offload| {
            let score = gain * (1.0 - held as f64 / bytes as f64) / (seconds.max(0.0) + tiny);
            if held < bytes {
                found.push(Eviction {
                    score,
                    value,
                    reader,
                    offload,
                });
            }
            score
        };
        if let Some((offload, copy, fetch)) = moves {
            let copied = self.runs.made_before(copy, read).is_some();
            let moves = [fetch].into_iter().chain((!copied).then_some(offload));
            let seconds = moves.map(|op| net.ops[op as usize].seconds).sum();
            *best = add(seconds, 0, true).max(*best);
        }
        // What nothing reads before can be made later instead.
        let maker = &net.ops[of.makers[0] as usize];
        let free = last.is_none()
            && self.runs.runs[made as usize].op == of.makers[0]
            && self.runs.unread(made, read);
        let may = runs_again && !maker.fixed && (!maker.once || free);
        if !may || !self.may_run(of.makers[0], read) {
            return;
        }
        // None until there is a best.
        let most_seconds = 4.0 * gain / *best;
        let cost = self.closure(of.makers[0], (at, read), most_seconds, bytes);
        if let Some((seconds, held)) = cost {
            let saved = if free { maker.seconds } else { 0.0 };
            *best = add(seconds - saved, held, false).max(*best);
        }
    }

    /// Whether chance hides an eviction ("blinks": Christiaens & Vanden Berghe 2020, Transportation Science 54).
    fn blinks(&mut self) -> bool {
        self.blinks > 0.0 && self.random.random_bool(self.blinks)
    }

    /// Whether an operation may run at a place: it fits, and what it reads has not been updated.
    fn may_run(&self, op: u32, place: Key) -> bool {
        let Op { need, before, .. } = self.net.ops[op as usize];
        let updated = before.and_then(|update| self.runs.before(update, place));
        need <= self.room.device && updated.is_none()
    }

    /// Finds what must run directly before a place so that `op` can, without what it reads being held at an earlier moment.
    /// Returns its seconds, and the bytes that stay at the moment after all; `None` if it cannot run, or takes too long.
    fn closure(
        &mut self,
        op: u32,
        (at, place): (Key, Key),
        most_seconds: f64,
        evicted: i64,
    ) -> Option<(f64, i64)> {
        for op in self.closure.drain(..) {
            self.marked[op as usize] = false;
        }
        self.closure.push(op);
        self.marked[op as usize] = true;
        let (mut all, mut held, mut next) = (0.0, 0_i64, 0);
        while let Some(&op) = self.closure.get(next) {
            next += 1;
            let runs = &self.net.ops[op as usize];
            all += runs.seconds;
            if all > most_seconds || next > MOST_CLOSURE {
                return None;
            }
            for &value in &runs.inputs {
                self.runs.work += 1;
                let of = &self.net.values[value as usize];
                let source = self.source(value, place);
                if self.marked[of.makers[0] as usize] || self.marked[source as usize] {
                    continue;
                }
                let made = self.runs.made_before(value, place);
                let end = made.map_or(0, |made| self.runs.key(self.runs.end(value, made)));
                if end >= place {
                    continue;
                }
                let crosses = end < at;
                let longer = self.between(bucket(end), bucket(place));
                let makes = &self.net.ops[source as usize];
                let can = !makes.once && self.may_run(source, place);
                let costly = of.bytes[0] as f64 * longer > self.rate * makes.seconds;
                // What is small may stay across the moment.
                let large = of.bytes[0] > evicted / 3;
                let again = made.is_none() || costly || (crosses && large);
                if again && can {
                    self.closure.push(source);
                    self.marked[source as usize] = true;
                } else if made.is_none() {
                    return None;
                } else if crosses {
                    held = held.saturating_add(of.bytes[0]);
                }
            }
        }
        Some((all, held))
    }

    /// The operation that makes a missing value: its fetch if there is a copy and that is quicker, or else its maker.
    fn source(&self, value: u32, place: Key) -> u32 {
        let maker = self.net.values[value as usize].makers[0];
        let quicker = |&(_, copy, fetch): &(u32, u32, u32)| {
            let [maker, fetch] = [maker, fetch].map(|op| &self.net.ops[op as usize]);
            let quicker = maker.once || fetch.seconds <= maker.seconds;
            quicker && self.runs.made_before(copy, place).is_some()
        };
        let fetch = self.net.transfers(value).filter(quicker);
        fetch.map_or(maker, |(_, _, fetch)| fetch)
    }

    /// Makes the best evictions that take overflow away, until a part of what is above the budget at this moment is freed, or else
    /// the first if it may. Returns the score of the first.
    fn evict_best(&mut self, high: u32, evictions: &[Eviction]) -> Option<f64> {
        let (peak, over) = (self.runs.peak(), self.runs.overflow(self.room));
        let enough = ((peak - self.room.device) / PARTS).max(1);
        let (mut freed, mut score) = (0, None);
        for &eviction in evictions {
            let start = self.runs.changes.len();
            let bytes = self.evict(high, eviction);
            let runs = &mut self.runs;
            runs.settle();
            let lower = runs.peak() < peak || runs.overflow(self.room) < over;
            match bytes.filter(|_| lower && runs.host_peak() <= self.room.host) {
                Some(bytes) => {
                    freed += bytes;
                    score = score.or(Some(eviction.score));
                }
                None => runs.undo(start),
            }
            if freed >= enough || runs.seconds > self.most_seconds {
                return score;
            }
        }
        if let Some(&first) = evictions.first()
            && score.is_none()
            && self.lenient > 0
        {
            self.lenient -= 1;
            self.evict(high, first);
            self.runs.settle();
            score = Some(first.score);
        }
        score
    }

    /// Makes an eviction, if it still is one after others. Returns the bytes that it frees.
    fn evict(&mut self, high: u32, eviction: Eviction) -> Option<i64> {
        let (net, runs, value) = (self.net, &mut self.runs, eviction.value);
        let (of, at) = (&net.values[value as usize], runs.key(high));
        let made = runs.made_before(value, at)?;
        let (reader, end) = (eviction.reader, runs.key(runs.end(value, made)));
        let held = runs.is_there(high) && end > at;
        if !held || runs.at(runs.next_read(value, at)) != reader {
            return None;
        }
        let place = runs.key(reader);
        let transfers = net.transfers(value).filter(|_| eviction.offload);
        if let Some((offload, copy, fetch)) = transfers {
            if runs.made_before(copy, place).is_none() {
                let last = runs.last_read(value, runs.key(made), at);
                runs.insert(offload, runs.key(last.unwrap_or(made)) + 1);
            }
            runs.insert(fetch, runs.key(reader));
            return Some(of.bytes[0]);
        }
        let maker = &net.ops[of.makers[0] as usize];
        if maker.once && !runs.unread(made, place) {
            return None;
        }
        self.closure(of.makers[0], (at, place), f64::INFINITY, of.bytes[0])?;
        let mut again = self.closure.clone();
        again.sort_unstable_by_key(|&op| (!net.moves(op), op));
        for op in again {
            self.runs.insert(op, self.runs.key(reader));
        }
        if self.runs.removable(made) && self.runs.unread(made, END) {
            self.runs.remove(made);
        }
        Some(of.bytes[0])
    }
}
