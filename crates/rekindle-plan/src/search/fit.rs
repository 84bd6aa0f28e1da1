//! Makes a program fit. At its highest moment, a value that is held and not read there is given up: it is made again directly
//! before its next read, with all else that must be made again for it, comes back from a copy on the host, or is read before that
//! moment. The evictions with the best scores are made: overflow taken away (bytes times moments above the budget) per second.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::net::{Net, Op, Value};
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
    /// The operation that runs for it: the value's maker or fetch, or that reader, earlier.
    op: u32,
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

    /// How many bytes are taken away before evictions are weighed anew.
    fn enough(&self) -> i64 {
        ((self.runs.peak() - self.room.device) / PARTS).max(1)
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
            if ends || self.runs.peak() <= self.room.device || !self.evict_best() {
                break;
            }
        }
        self.fits()
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
        self.runs.work += 1;
        let Some(made) = self.runs.holds(value, at).filter(|_| bytes > 0) else {
            return;
        };
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
        let mut add = |seconds: f64, held: i64, op| {
            let score = gain * (1.0 - held as f64 / bytes as f64) / (seconds.max(0.0) + tiny);
            if held < bytes {
                found.push(Eviction {
                    score,
                    value,
                    reader,
                    op,
                });
            }
            score
        };
        if let Some(freed) = self.earlier(reader, at).filter(|_| !self.blinks()) {
            add(0.0, bytes - freed, self.runs.runs[reader as usize].op);
        }
        if let Some((offload, copy, fetch)) = moves {
            let copied = self.runs.made_before(copy, read).is_some();
            let moves = [fetch].into_iter().chain((!copied).then_some(offload));
            let seconds = moves.map(|op| net.ops[op as usize].seconds).sum();
            *best = add(seconds, 0, fetch).max(*best);
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
        let most = 4.0 * gain / *best;
        if let Some((seconds, held)) = self.closure(value, (at, read), most) {
            let saved = if free { maker.seconds } else { 0.0 };
            *best = add(seconds - saved, held, of.makers[0]).max(*best);
        }
    }

    /// The bytes that a run frees, if they are enough and it can run at an earlier place: this takes no time, but many small ones,
    /// or the first of a fit from a start, spoil the order for others. So only rounds and further turns do it.
    fn earlier(&mut self, run: u32, place: Key) -> Option<i64> {
        let freed = -self.runs.nodes[run as usize].change[0];
        let may = self.blinks > 0.0 && !self.runs.op(run).fixed && freed >= self.enough();
        (may && self.runs.earliest(run) <= place).then_some(freed)
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

    /// Finds what must run directly before a place so that a value is made there, without what is read for it being held at an
    /// earlier moment. Returns its seconds, and the bytes that stay at that moment after all; `None` if it cannot run, or takes
    /// more than `most` seconds.
    fn closure(&mut self, value: u32, (at, place): (Key, Key), most: f64) -> Option<(f64, i64)> {
        let Value { makers, bytes, .. } = &self.net.values[value as usize];
        for op in self.closure.drain(..) {
            self.marked[op as usize] = false;
        }
        self.closure.push(makers[0]);
        self.marked[makers[0] as usize] = true;
        let (mut all, mut held, mut next) = (0.0, 0_i64, 0);
        while let Some(&op) = self.closure.get(next) {
            next += 1;
            let runs = &self.net.ops[op as usize];
            all += runs.seconds;
            if all > most || next > MOST_CLOSURE {
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
                let large = of.bytes[0] > bytes[0] / 3;
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

    /// Makes the best evictions at the highest moment that take overflow away, until a part of what is above the budget there is
    /// freed. Whether there was one.
    fn evict_best(&mut self) -> bool {
        let high = self.highest();
        let (mut evictions, mut score) = (Vec::new(), 0.0);
        for value in 0..self.net.values.len() as u32 {
            let (first, last) = self.runs.within[value as usize];
            if (first..=last).contains(&(self.spot as u32)) {
                self.evictions_of(value, high, &mut score, &mut evictions);
            }
        }
        evictions.sort_by(|one, other| other.score.total_cmp(&one.score));
        let (peak, over) = (self.runs.peak(), self.runs.overflow(self.room));
        let (enough, mut freed, mut best) = (self.enough(), 0, None);
        for eviction in evictions {
            let start = self.runs.changes.len();
            let Some(bytes) = self.evict(high, eviction) else {
                continue;
            };
            let runs = &mut self.runs;
            runs.settle();
            let lower = runs.peak() < peak || runs.overflow(self.room) < over;
            if runs.host_peak() <= self.room.host && (lower || self.lenient > 0) {
                self.lenient -= usize::from(!lower);
                freed += bytes;
                best = best.or(Some(eviction.score));
            } else {
                runs.undo(start);
            }
            let ends = freed >= enough || runs.seconds > self.most_seconds;
            if ends || !runs.is_there(high) {
                break;
            }
        }
        self.rate = 0.5 * (self.rate + best.unwrap_or_default());
        best.is_some()
    }

    /// Makes an eviction, if it still is one after others. Returns the bytes that it frees.
    fn evict(&mut self, high: u32, eviction: Eviction) -> Option<i64> {
        let (net, runs, value) = (self.net, &mut self.runs, eviction.value);
        let (bytes, at) = (net.values[value as usize].bytes[0], runs.key(high));
        let (made, reader) = (runs.holds(value, at)?, eviction.reader);
        if runs.at(runs.next_read(value, at)) != reader {
            return None;
        }
        let place = runs.key(reader);
        if runs.runs[reader as usize].op == eviction.op {
            let freed = self.earlier(reader, at)?;
            self.runs.relocate(reader, at);
            return Some(freed);
        }
        let mut again = vec![eviction.op];
        let transfers = net.transfers(value).filter(|_| net.moves(eviction.op));
        if let Some((offload, copy, _)) = transfers {
            if runs.made_before(copy, place).is_none() {
                let last = runs.last_read(value, runs.key(made), at);
                runs.insert(offload, runs.key(last.unwrap_or(made)) + 1);
            }
        } else if net.ops[eviction.op as usize].once && !runs.unread(made, place) {
            return None;
        } else {
            self.closure(value, (at, place), f64::INFINITY)?;
            again.clone_from(&self.closure);
            again.sort_unstable_by_key(|&op| (!net.moves(op), op));
        }
        for op in again {
            self.runs.insert(op, self.runs.key(reader));
        }
        if self.runs.unread(made, END) {
            self.runs.remove(made);
        }
        Some(bytes)
    }
}
