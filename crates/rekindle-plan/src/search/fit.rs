//! Makes a program fit. At its highest moment, a value that is held and not read there is given up: it is made again directly
//! before its next read, with all else that must be made again for it, or comes back from a copy on the host. Of all these
//! evictions the one with the best score is made: overflow taken away (bytes times moments above the budget), less what
//! inputs that live longer add, per second.

use super::Room;
use super::net::{NONE, Net, Op};
use super::random::Random;
use super::runs::{END, Key, Runs, bucket};

/// Moments above the budget from which on several evictions are made at once.
const WIDE: i64 = 1000;
/// Evictions of a moment that are tried until one takes overflow away.
const TRIED: usize = 12;
/// The most operations that run again for one eviction.
const MOST_CLOSURE: usize = 300;

/// How evictions are chosen.
#[derive(Clone, Copy, Default)]
pub(super) struct Choice {
    /// How much chance changes their scores.
    pub(super) noise: f64,
    /// Evictions that may take no overflow away.
    pub(super) lenient: usize,
    /// Bits that decide which small inputs stay where they could be made again.
    pub(super) coins: u64,
}

/// Makes programs fit. Its tables are kept between calls.
pub(super) struct Fit {
    /// Least bytes held while an operation runs.
    need: Vec<i64>,
    /// Moments above the budget before each bucket, and their bytes.
    count: Vec<i64>,
    weight: Vec<f64>,
    /// The closure in which an operation was last.
    mark: Vec<u32>,
    stamp: u32,
    /// What runs again for an eviction.
    closure: Vec<u32>,
    choice: Choice,
    /// Overflow that a second takes away.
    rate: f64,
    /// The bucket of the last moment above the budget.
    pub(super) spot: usize,
}

#[derive(Clone, Copy)]
struct Eviction {
    score: f64,
    /// The value of this run, until that one reads it.
    value: u32,
    made: u32,
    reader: u32,
    /// Whether it goes to the host, and comes back.
    offload: bool,
}

/// What making a value again takes.
#[derive(Default)]
struct Cost {
    seconds: f64,
    /// Bytes that stay at the moment after all.
    held: i64,
    /// Bytes times moments that are added elsewhere.
    added: f64,
}

/// A moment above the budget.
#[derive(Clone, Copy)]
struct Moment {
    run: u32,
    key: Key,
    bytes: i64,
}

impl Fit {
    pub(super) fn new(net: &Net) -> Fit {
        let need = net.ops.iter().map(|op| {
            let read = op
                .inputs
                .iter()
                .map(|&one| net.values[one as usize].bytes[0]);
            let made = if op.reuses == NONE { op.made[0] } else { 0 };
            net.fixed + op.temporary + read.sum::<i64>() + made
        });
        Fit {
            need: need.collect(),
            count: vec![0; net.ranks + 1],
            weight: vec![0.0; net.ranks + 1],
            mark: vec![0; net.ops.len()],
            stamp: 0,
            closure: Vec::new(),
            choice: Choice::default(),
            rate: 0.0,
            spot: 0,
        }
    }

    /// The least budget of any program that runs all recorded operations.
    pub(super) fn floor(&self, net: &Net) -> i64 {
        let needs = net.ops.iter().zip(&self.need);
        let needs = needs.filter(|(op, _)| !op.transfer).map(|(_, need)| *need);
        needs.max().unwrap_or(net.fixed)
    }

    /// Evicts until the program fits, at most so often. Whether it does.
    pub(super) fn fit(
        &mut self,
        runs: &mut Runs<'_>,
        room: Room,
        choice: Choice,
        random: &mut Random,
        limit: usize,
    ) -> bool {
        self.choice = choice;
        self.rate = 0.0;
        for _ in 0..limit {
            if runs.peak() <= room.device {
                return runs.fits(room);
            }
            let high = self.highest(runs, room);
            let evictions = self.evictions(runs, room, high, random);
            let Some(score) = self.evict_best(runs, room, high, &evictions) else {
                return false;
            };
            self.rate = 0.5 * self.rate + 0.5 * score.min(1e3 * self.rate);
        }
        false
    }

    /// Counts the moments above the budget, and returns the highest.
    fn highest(&mut self, runs: &mut Runs<'_>, room: Room) -> Moment {
        let buckets = runs.net.ranks;
        let (mut held, mut bytes, mut at) = (runs.net.fixed, i64::MIN, 0);
        for one in 0..buckets {
            let (change, top) = runs.moment(one);
            let over = (held + top - room.device).max(0);
            self.weight[one + 1] = self.weight[one] + over as f64;
            self.count[one + 1] = self.count[one] + i64::from(over > 0);
            if held + top > bytes {
                (bytes, at) = (held + top, one);
            }
            held += change;
        }
        if self.rate == 0.0 {
            self.rate = self.weight[buckets] / runs.seconds.max(1e-12);
        }
        runs.work += buckets as u64 / 4;
        self.spot = at;
        let run = runs.highest(at);
        let key = runs.key(run);
        Moment { run, key, bytes }
    }

    /// The evictions at a moment, the best first.
    fn evictions(
        &mut self,
        runs: &mut Runs<'_>,
        room: Room,
        high: Moment,
        random: &mut Random,
    ) -> Vec<Eviction> {
        let mut found = Vec::new();
        for last_resort in [false, true] {
            let mut best = 0.0;
            for value in 0..runs.net.values.len() as u32 {
                if (runs.latest[value as usize] as usize) < bucket(high.key) {
                    continue;
                }
                for eviction in
                    self.evictions_of(runs, room, high, value, (best, last_resort), random)
                {
                    best = f64::max(best, eviction.score);
                    found.push(eviction);
                }
            }
            if !found.is_empty() {
                break;
            }
        }
        found.sort_by(|a, b| b.score.total_cmp(&a.score));
        found
    }

    /// The ways to give up a value at a moment.
    fn evictions_of(
        &mut self,
        runs: &mut Runs<'_>,
        room: Room,
        high: Moment,
        value: u32,
        (best, last_resort): (f64, bool),
        random: &mut Random,
    ) -> impl Iterator<Item = Eviction> + use<> {
        let none = [None, None].into_iter().flatten();
        let net = runs.net;
        let of = &net.values[value as usize];
        let bytes = of.bytes[0];
        let Some(made) = runs.made_before(value, high.key).filter(|_| bytes > 0) else {
            return none;
        };
        runs.work += 1;
        let (made_key, read) = (runs.key(made), runs.next_read(value, high.key));
        if read == END || read >= runs.made_next(value, made_key) {
            return none;
        }
        // What the highest operation reads is there, unless its output takes it over.
        let last = runs.last_read(value, made_key, high.key + 1);
        let taken = last == Some(high.run);
        if taken && runs.op(high.run).reuses != value {
            return none;
        }
        let to = bucket(read);
        let from = bucket(last.map_or(made_key, |last| runs.key(last))) + usize::from(!taken);
        let from = from.min(to);
        let count = self.count[to] - self.count[from];
        let weight = self.weight[to] - self.weight[from];
        let gain = (bytes as f64 * count.max(1) as f64).min(weight.max(1.0));
        let noise = self.choice.noise;
        let mut chance = || match noise > 0.0 {
            true => gain * (noise * (random.share() - 0.5)).exp(),
            false => gain,
        };
        let tiny = 1e-9 * runs.seconds + 1e-15;
        let reader = runs.at(read);
        let eviction = |gain: f64, cost: &Cost, offload| {
            let net_gain = gain - cost.added;
            let share = 1.0 - cost.held as f64 / bytes as f64;
            let score = net_gain.max(1e-3 * gain) * share / (cost.seconds.max(0.0) + tiny);
            let found = cost.held < bytes && (net_gain > 0.0 || last_resort);
            found.then_some(Eviction {
                score,
                value,
                made,
                reader,
                offload,
            })
        };
        let offloaded = (of.fetch != NONE).then(|| {
            let seconds = |op: u32| net.ops[op as usize].seconds;
            let copy = net.ops[of.offload as usize].outputs[0];
            let to_host = match runs.made_before(copy, read) {
                Some(_) => 0.0,
                None => seconds(of.offload),
            };
            Cost {
                seconds: to_host + seconds(of.fetch),
                ..Cost::default()
            }
        });
        let offloaded = offloaded.and_then(|cost| eviction(chance(), &cost, true));
        let gain = chance();
        // What nothing reads before can be made later instead.
        let maker = &net.ops[of.maker as usize];
        let free =
            last.is_none() && runs.runs[made as usize].op == of.maker && runs.unread(made, read);
        let allowed = (free || maker.repeatable)
            && !maker.fixed
            && self.need[of.maker as usize] <= room.device
            && !after_update(runs, maker, read);
        let most_seconds = match last_resort || best == 0.0 {
            true => f64::INFINITY,
            false => 4.0 * gain / best,
        };
        let again = allowed.then(|| {
            let mut cost =
                self.closure(runs, room, of.maker, (high.key, read), most_seconds, bytes)?;
            if free {
                cost.seconds -= maker.seconds;
            }
            Some(cost)
        });
        let again = again
            .flatten()
            .and_then(|cost| eviction(gain, &cost, false));
        [again, offloaded].into_iter().flatten()
    }

    /// Finds what must run directly before a place so that `op` can, without what it reads being held at an earlier moment;
    /// `None` if it cannot, or takes more than so many seconds.
    fn closure(
        &mut self,
        runs: &mut Runs<'_>,
        room: Room,
        op: u32,
        (at, place): (Key, Key),
        most_seconds: f64,
        evicted: i64,
    ) -> Option<Cost> {
        let net = runs.net;
        self.closure.clear();
        self.closure.push(op);
        self.stamp += 1;
        self.mark[op as usize] = self.stamp;
        let to = bucket(place);
        let mut cost = Cost::default();
        let mut coins = self.choice.coins;
        let mut next = 0;
        while let Some(&op) = self.closure.get(next) {
            next += 1;
            let Op {
                seconds, inputs, ..
            } = &net.ops[op as usize];
            cost.seconds += seconds;
            if cost.seconds > most_seconds || next > MOST_CLOSURE {
                return None;
            }
            for &value in inputs {
                runs.work += 1;
                let of = &net.values[value as usize];
                let source = source(runs, value, place);
                let marked = |op: u32| self.mark[op as usize] == self.stamp;
                if marked(of.maker) || marked(source) {
                    continue;
                }
                let made = runs.made_before(value, place);
                let end = made.map_or(0, |made| runs.key(runs.end(value, made)));
                if end >= place {
                    continue;
                }
                let crosses = end < at;
                let longer = self.count[to] - self.count[bucket(end).min(to)];
                let added = of.bytes[0] as f64 * longer as f64;
                let makes = &net.ops[source as usize];
                let can = makes.repeatable
                    && at < place
                    && self.need[source as usize] <= room.device
                    && !after_update(runs, makes, place);
                let costly = added > self.rate * makes.seconds;
                coins = coins.rotate_right(1);
                let stays = of.bytes[0] <= evicted / 3 && (coins & 1 == 1 || !costly);
                let again = made.is_none() || costly || (crosses && !stays);
                if again && can {
                    self.closure.push(source);
                    self.mark[source as usize] = self.stamp;
                } else if made.is_none() {
                    return None;
                } else {
                    cost.added += added;
                    if crosses {
                        cost.held += of.bytes[0];
                    }
                }
            }
        }
        Some(cost)
    }

    /// Makes the first eviction that takes overflow away, or else the first if it may; several of the best at once where many
    /// moments are above the budget. Returns the score of the first.
    fn evict_best(
        &mut self,
        runs: &mut Runs<'_>,
        room: Room,
        high: Moment,
        evictions: &[Eviction],
    ) -> Option<f64> {
        let (over, moments) = (self.weight[runs.net.ranks], self.count[runs.net.ranks]);
        let (tried, enough) = match moments > WIDE {
            true => (evictions.len(), (high.bytes - room.device) / 4),
            false => (TRIED, 1),
        };
        let (mut freed, mut score) = (0, None);
        for eviction in evictions.iter().take(tried) {
            let start = runs.changes.len();
            let bytes = self.evict(runs, room, high, *eviction);
            let lower = moments > WIDE || runs.peak() < high.bytes || runs.overflow(room) < over;
            let Some(bytes) = bytes.filter(|_| lower && runs.host_peak() <= room.host) else {
                runs.undo(start);
                continue;
            };
            freed += bytes;
            score = score.or(Some(eviction.score));
            if freed >= enough {
                return score;
            }
        }
        if let Some(first) = evictions.first()
            && score.is_none()
            && self.choice.lenient > 0
        {
            self.choice.lenient -= 1;
            self.evict(runs, room, high, *first);
            score = Some(first.score);
        }
        score
    }

    /// Makes an eviction, if it still is one after others. Returns the bytes that it frees.
    fn evict(
        &mut self,
        runs: &mut Runs<'_>,
        room: Room,
        high: Moment,
        eviction: Eviction,
    ) -> Option<i64> {
        let Eviction {
            value,
            made,
            reader,
            offload,
            ..
        } = eviction;
        let of = &runs.net.values[value as usize];
        if ![reader, made, high.run]
            .iter()
            .all(|&run| runs.is_there(run))
        {
            return None;
        }
        let (at, place) = (runs.key(high.run), runs.key(reader));
        if place <= at || runs.made_before(value, place) != Some(made) {
            return None;
        }
        if offload {
            let copy = runs.net.ops[of.offload as usize].outputs[0];
            if runs.made_before(copy, place).is_none() {
                let last = runs.last_read(value, runs.key(made), at);
                let after = runs.key(last.unwrap_or(made)) + 1;
                runs.insert(of.offload, after);
            }
            let place = runs.key(reader);
            runs.insert(of.fetch, place);
            return Some(of.bytes[0]);
        }
        let maker = &runs.net.ops[of.maker as usize];
        if !maker.repeatable && !runs.unread(made, place) {
            return None;
        }
        self.closure(
            runs,
            room,
            of.maker,
            (at, place),
            f64::INFINITY,
            of.bytes[0],
        )?;
        let net = runs.net;
        self.closure
            .sort_unstable_by_key(|&op| net.ops[op as usize].rank);
        for &op in &self.closure {
            let place = runs.key(reader);
            runs.insert(op, place);
        }
        if runs.removable(made) && runs.unread(made, END) {
            runs.remove(made);
        }
        Some(maker.made[0])
    }
}

/// Whether a place is behind the update of what an operation reads.
fn after_update(runs: &Runs<'_>, op: &Op, place: Key) -> bool {
    op.before != NONE
        && runs
            .runs_of(op.before)
            .iter()
            .any(|&update| runs.key(update) < place)
}

/// The operation that makes a missing value: its fetch if there is a copy and that is quicker, or else its maker.
fn source(runs: &Runs<'_>, value: u32, place: Key) -> u32 {
    let net = runs.net;
    let of = &net.values[value as usize];
    if of.fetch == NONE {
        return of.maker;
    }
    let (maker, fetch) = (&net.ops[of.maker as usize], &net.ops[of.fetch as usize]);
    let copied = runs.made_before(fetch.inputs[0], place).is_some();
    match copied && (fetch.seconds <= maker.seconds || !maker.repeatable) {
        true => of.fetch,
        false => of.maker,
    }
}
