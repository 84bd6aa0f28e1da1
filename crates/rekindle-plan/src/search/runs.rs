//! The state of the search: the runs of each operation in one order, with its peak and time kept up to date.
//!
//! Runs lie in buckets, one for each operation of the recorded order: first what runs before that operation, then itself.
//! Where a value is freed follows from the runs alone: after the last run that reads it before its maker runs again. Each run
//! knows what is freed after it, each bucket its change of held bytes and its highest moment, and a tree over buckets those
//! of the whole. A run is inserted or removed in O(degree log n + length of the bucket).

use smallvec::SmallVec;

use super::net::{Net, Op};

/// The place of a run: its bucket, and its place there.
pub(super) type Key = u64;
/// Beyond all runs.
pub(super) const END: Key = u64::MAX;

pub(super) fn key(bucket: u32, place: u32) -> Key {
    u64::from(bucket) << 32 | u64::from(place)
}

pub(super) fn bucket(key: Key) -> usize {
    (key >> 32) as usize
}

/// The most bytes on the device and of copies on the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) device: i64,
    pub(super) host: i64,
}

#[derive(Clone, Default)]
pub(super) struct Run {
    pub(super) op: u32,
    /// The run after which each of its outputs is freed.
    ends: SmallVec<[u32; 2]>,
    /// What is freed after it, on the device and on the host.
    freed: [i64; 2],
    /// Of the device's, what the operation's output takes over.
    reused: i64,
}

impl Run {
    fn of(net: &Net, op: u32) -> Run {
        let outputs = net.ops[op as usize].outputs.len();
        Run {
            op,
            ends: SmallVec::from_elem(0, outputs),
            ..Run::default()
        }
    }
}

/// A bucket, or a range of them: the change of held bytes, and the highest moment above what was held before, on the device
/// and on the host.
#[derive(Clone, Copy, PartialEq)]
struct Node {
    change: [i64; 2],
    top: [i64; 2],
}

impl Node {
    const NONE: Node = Node {
        change: [0; 2],
        top: [LOW; 2],
    };

    fn then(self, next: Node) -> Node {
        let top = |of: usize| self.top[of].max(self.change[of] + next.top[of]);
        Node {
            change: [0, 1].map(|of| self.change[of] + next.change[of]),
            top: [top(0), top(1)],
        }
    }
}

/// A change that can be undone.
#[derive(Clone, Copy)]
pub(super) struct Change {
    pub(super) op: u32,
    place: Key,
    pub(super) inserted: bool,
    /// The time before it.
    seconds: f64,
}

pub(super) struct Runs<'a> {
    pub(super) net: &'a Net<'a>,
    pub(super) runs: Vec<Run>,
    /// Where each run is.
    keys: Vec<Key>,
    unused: Vec<u32>,
    /// The runs of each operation, in order.
    of: Vec<SmallVec<[u32; 2]>>,
    pub(super) buckets: Vec<Vec<u32>>,
    leaves: usize,
    tree: Vec<Node>,
    /// Buckets whose moments have changed.
    dirty: Vec<usize>,
    /// No run before the first bucket has made the value, and none beyond the second has read it, by value.
    pub(super) within: Vec<(u32, u32)>,
    pub(super) seconds: f64,
    pub(super) changes: Vec<Change>,
    /// A measure of the time that has been spent.
    pub(super) work: u64,
}

const LOW: i64 = i64::MIN / 4;

impl<'a> Runs<'a> {
    /// The runs of a list of operations.
    pub(super) fn of(net: &'a Net<'a>, order: &[u32]) -> Runs<'a> {
        let leaves = net.ranks.next_power_of_two();
        let mut all = Runs {
            net,
            runs: order.iter().map(|&op| Run::of(net, op)).collect(),
            keys: Vec::with_capacity(order.len()),
            unused: Vec::new(),
            of: vec![SmallVec::new(); net.ops.len()],
            buckets: vec![Vec::new(); net.ranks],
            leaves,
            tree: vec![Node::NONE; 2 * leaves],
            dirty: (0..net.ranks).collect(),
            within: vec![(u32::MAX, 0); net.values.len()],
            seconds: order.iter().map(|&op| net.ops[op as usize].seconds).sum(),
            changes: Vec::new(),
            work: 0,
        };
        // The bucket of a run is that of the next recorded operation that runs for the first time.
        let mut first: Vec<Option<usize>> = vec![None; net.ops.len()];
        for (place, &op) in order.iter().enumerate() {
            first[op as usize].get_or_insert(place);
        }
        let mut at = net.ranks as u32 - 1;
        let mut buckets = vec![0; order.len()];
        for (place, &op) in order.iter().enumerate().rev() {
            let of = &net.ops[op as usize];
            if first[op as usize] == Some(place) && !net.moves(op) {
                at = at.min(of.rank);
            }
            buckets[place] = at;
        }
        for (id, (&op, at)) in (0..).zip(order.iter().zip(buckets)) {
            let list = &mut all.buckets[at as usize];
            all.keys.push(key(at, list.len() as u32));
            list.push(id);
            all.of[op as usize].push(id);
            all.widen(op, at);
        }
        for id in 0..order.len() as u32 {
            for &value in &all.op(id).outputs {
                all.free(value, id, 1);
            }
        }
        all.settle();
        all
    }

    /// The operations, in order.
    pub(super) fn order(&self) -> Vec<u32> {
        let runs = self.buckets.iter().flatten();
        runs.map(|&run| self.runs[run as usize].op).collect()
    }

    /// The number of runs that the recorded order does not have.
    pub(super) fn again(&self) -> usize {
        (self.runs.len() - self.unused.len()).saturating_sub(self.net.ranks)
    }

    /// The operation of a run.
    pub(super) fn op(&self, run: u32) -> &'a Op {
        &self.net.ops[self.runs[run as usize].op as usize]
    }

    pub(super) fn peak(&self) -> i64 {
        debug_assert!(self.dirty.is_empty());
        self.net.fixed() + self.tree[1].top[0]
    }

    pub(super) fn host_peak(&self) -> i64 {
        self.tree[1].top[1]
    }

    /// The change of held bytes in a bucket, and its highest moment above what was held before.
    pub(super) fn moment(&self, bucket: usize) -> (i64, i64) {
        let Node { change, top } = self.tree[self.leaves + bucket];
        (change[0], top[0])
    }

    /// The bytes above the room, of all moments: together they may be more than an `i64` holds.
    pub(super) fn overflow(&self, room: Room) -> f64 {
        let mut held = self.net.fixed();
        let mut total = (self.host_peak() - room.host).max(0) as f64;
        for one in 0..self.buckets.len() {
            let (change, top) = self.moment(one);
            total += (held + top - room.device).max(0) as f64;
            held += change;
        }
        total
    }

    /// The run of a bucket that is its highest moment.
    pub(super) fn highest(&self, bucket: usize) -> u32 {
        let (mut held, mut top, mut at) = (0, LOW, 0);
        for &id in &self.buckets[bucket] {
            let node = self.node(id);
            if held + node.top[0] > top {
                (top, at) = (held + node.top[0], id);
            }
            held += node.change[0];
        }
        at
    }

    fn node(&self, run: u32) -> Node {
        let Op {
            made: [device, host],
            temporary,
            ..
        } = *self.op(run);
        let Run { freed, reused, .. } = self.runs[run as usize];
        Node {
            change: [device - freed[0], host - freed[1]],
            top: [device - reused + temporary, host],
        }
    }

    /// Brings the tree up to date, after changes and before it is asked.
    pub(super) fn settle(&mut self) {
        let mut buckets = std::mem::take(&mut self.dirty);
        buckets.sort_unstable();
        buckets.dedup();
        for bucket in buckets.drain(..) {
            let runs = &self.buckets[bucket];
            let mut node = self.leaves + bucket;
            self.tree[node] = runs
                .iter()
                .fold(Node::NONE, |all, &run| all.then(self.node(run)));
            self.work += 1 + runs.len() as u64 / 8;
            while node > 1 {
                node /= 2;
                let now = self.tree[2 * node].then(self.tree[2 * node + 1]);
                if now == self.tree[node] {
                    break;
                }
                self.tree[node] = now;
                self.work += 1;
            }
        }
        self.dirty = buckets;
    }

    /// The run at a place.
    pub(super) fn at(&self, place: Key) -> u32 {
        self.buckets[bucket(place)][place as u32 as usize]
    }

    /// Whether a run has not been removed.
    pub(super) fn is_there(&self, run: u32) -> bool {
        let key = self.key(run);
        self.buckets[bucket(key)].get(key as u32 as usize) == Some(&run)
    }

    pub(super) fn key(&self, run: u32) -> Key {
        self.keys[run as usize]
    }

    /// The number of runs of an operation before a place.
    fn count_before(&self, op: u32, place: Key) -> usize {
        let runs = &self.of[op as usize];
        match **runs {
            [run] => usize::from(self.key(run) < place),
            _ => runs.partition_point(|&run| self.key(run) < place),
        }
    }

    pub(super) fn runs_of(&self, op: u32) -> &[u32] {
        &self.of[op as usize]
    }

    /// The last run of an operation before a place.
    pub(super) fn before(&self, op: u32, place: Key) -> Option<u32> {
        let count = self.count_before(op, place);
        count.checked_sub(1).map(|last| self.of[op as usize][last])
    }

    /// Where an operation runs next, after a place.
    pub(super) fn next_run(&self, op: u32, after: Key) -> Key {
        let next = self.of[op as usize].get(self.count_before(op, after + 1));
        next.map_or(END, |&run| self.key(run))
    }

    /// Where one of some operations runs next, after a place.
    fn next_of(&self, ops: &[u32], after: Key) -> Key {
        let next = ops.iter().map(|&op| self.next_run(op, after));
        next.min().unwrap_or(END)
    }

    /// The last run that makes a value, before a place.
    pub(super) fn made_before(&self, value: u32, place: Key) -> Option<u32> {
        let makers = self.net.values[value as usize].makers.iter();
        let made = makers.filter_map(|&maker| self.before(maker, place));
        made.max_by_key(|&run| self.key(run))
    }

    /// Where a value is made next, after a place.
    pub(super) fn made_next(&self, value: u32, after: Key) -> Key {
        self.next_of(&self.net.values[value as usize].makers, after)
    }

    /// The last run that reads a value, between two places.
    pub(super) fn last_read(&self, value: u32, after: Key, before: Key) -> Option<u32> {
        let mut last = None;
        let mut latest = after;
        for &reader in &self.net.values[value as usize].readers {
            if let Some(run) = self.before(reader, before)
                && self.key(run) > latest
            {
                (last, latest) = (Some(run), self.key(run));
            }
        }
        last
    }

    /// Where a value is read next, after a place.
    pub(super) fn next_read(&self, value: u32, after: Key) -> Key {
        self.next_of(&self.net.values[value as usize].readers, after)
    }

    /// The place of a value that a run makes among its outputs.
    fn place(&self, value: u32, made: u32) -> usize {
        let mut outputs = self.op(made).outputs.iter();
        outputs.position(|one| *one == value).unwrap_or_default()
    }

    /// The run after which the value that a run makes is freed.
    pub(super) fn end(&self, value: u32, made: u32) -> u32 {
        self.runs[made as usize].ends[self.place(value, made)]
    }

    /// Adds what is freed after the value's last read, or takes it away; finds that read where it adds.
    fn free(&mut self, value: u32, made: u32, sign: i64) {
        if sign == 1 {
            let key = self.key(made);
            let next = self.made_next(value, key);
            let place = self.place(value, made);
            self.runs[made as usize].ends[place] = self.last_read(value, key, next).unwrap_or(made);
        }
        let end = self.end(value, made);
        let [device, host] = self.net.values[value as usize].bytes;
        let reuses = self.op(end).reuses == Some(value);
        let run = &mut self.runs[end as usize];
        run.freed[0] += sign * device;
        run.freed[1] += sign * host;
        if reuses {
            run.reused += sign * device;
        }
        self.dirty.push(bucket(self.keys[end as usize]));
    }

    /// Adds or takes away all that ends otherwise with a run at a place than without it.
    fn around(&mut self, op: u32, place: Key, with: Option<u32>, sign: i64) {
        let Op {
            inputs, outputs, ..
        } = &self.net.ops[op as usize];
        for &value in outputs {
            for made in self.made_before(value, place).into_iter().chain(with) {
                self.free(value, made, sign);
            }
        }
        for &value in inputs {
            if let Some(made) = self.made_before(value, place) {
                self.free(value, made, sign);
            }
        }
        self.work += (inputs.len() + outputs.len()) as u64;
    }

    /// Inserts a run of an operation at a place, before the run that is there.
    pub(super) fn insert(&mut self, op: u32, place: Key) {
        self.note(op, place, true);
        self.around(op, place, None, -1);
        let id = self.unused.pop().unwrap_or(self.runs.len() as u32);
        if id as usize == self.runs.len() {
            self.runs.push(Run::default());
            self.keys.push(place);
        }
        self.runs[id as usize] = Run::of(self.net, op);
        self.keys[id as usize] = place;
        let at = self.count_before(op, place);
        self.buckets[bucket(place)].insert(place as u32 as usize, id);
        self.renumber(place);
        self.of[op as usize].insert(at, id);
        self.around(op, place, Some(id), 1);
        self.dirty.push(bucket(place));
        self.widen(op, bucket(place) as u32);
        self.seconds += self.net.ops[op as usize].seconds;
    }

    fn widen(&mut self, op: u32, bucket: u32) {
        let of = &self.net.ops[op as usize];
        for &value in &of.outputs {
            let (first, _) = &mut self.within[value as usize];
            *first = bucket.min(*first);
        }
        for &value in &of.inputs {
            let (_, last) = &mut self.within[value as usize];
            *last = bucket.max(*last);
        }
    }

    fn note(&mut self, op: u32, place: Key, inserted: bool) {
        self.changes.push(Change {
            op,
            place,
            inserted,
            seconds: self.seconds,
        });
    }

    /// Removes a run.
    pub(super) fn remove(&mut self, run: u32) {
        let (op, place) = (self.runs[run as usize].op, self.key(run));
        self.note(op, place, false);
        self.around(op, place, Some(run), -1);
        let at = self.count_before(op, place);
        self.of[op as usize].remove(at);
        self.buckets[bucket(place)].remove(place as u32 as usize);
        self.renumber(place);
        self.around(op, place, None, 1);
        self.dirty.push(bucket(place));
        self.unused.push(run);
        self.seconds -= self.net.ops[op as usize].seconds;
    }

    /// Numbers the runs of a bucket anew, from a place on.
    fn renumber(&mut self, from: Key) {
        let list = &self.buckets[bucket(from)];
        for (place, &run) in list.iter().enumerate().skip(from as u32 as usize) {
            self.keys[run as usize] = key(bucket(from) as u32, place as u32);
        }
    }

    /// Whether a program without this run is one.
    pub(super) fn removable(&self, run: u32) -> bool {
        let key = self.key(run);
        let mut outputs = self.op(run).outputs.iter();
        !self.op(run).fixed
            && outputs.all(|&value| {
                let next = self.made_next(value, key);
                self.made_before(value, key).is_some() || self.last_read(value, key, next).is_none()
            })
    }

    /// Whether nothing reads what a run makes before a place, or before it is made again.
    pub(super) fn unread(&self, run: u32, place: Key) -> bool {
        let key = self.key(run);
        let mut outputs = self.op(run).outputs.iter();
        outputs.all(|&value| {
            let next = self.made_next(value, key).min(place);
            self.last_read(value, key, next).is_none()
        })
    }

    /// Whether a run is one that the recorded order does not have.
    pub(super) fn is_extra(&self, run: u32) -> bool {
        let Run { op, .. } = self.runs[run as usize];
        self.of[op as usize].len() > 1 || self.net.moves(op)
    }

    /// The runs that the recorded order does not have.
    pub(super) fn extra(&self) -> Vec<u32> {
        let runs = self.buckets.iter().flatten().copied();
        runs.filter(|&run| self.is_extra(run)).collect()
    }

    /// Undoes all but the first changes.
    pub(super) fn undo(&mut self, to: usize) {
        while self.changes.len() > to
            && let Some(change) = self.changes.pop()
        {
            match change.inserted {
                true => self.remove(self.at(change.place)),
                false => self.insert(change.op, change.place),
            }
            self.changes.pop();
            self.seconds = change.seconds;
        }
        self.settle();
    }
}
