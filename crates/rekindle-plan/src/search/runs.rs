//! The state of the search: the runs of each operation in one order, with its peak and time kept up to date.
//!
//! Runs lie in buckets, one for each operation of the recorded order: first what runs before that operation, then itself.
//! Where a value is freed follows from the runs alone: after the last run that reads it before its maker runs again. Each run
//! knows where what it makes is freed, each run and bucket its change of held bytes and its highest moment, and a tree over
//! buckets those of the whole. A run is inserted or removed in O(degree log n + length of the bucket).

use std::cmp::Reverse;
use std::collections::BTreeSet;

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

/// The most bytes on the device, besides those held at every moment, and of copies on the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) device: i64,
    pub(super) host: i64,
}

pub(super) struct Run {
    pub(super) op: u32,
    /// The values that it makes, and the run after which each is freed.
    ends: SmallVec<[(u32, u32); 2]>,
}

/// A run, a bucket, or a range of them: the change of held bytes, and the highest moment above what was held before, on the
/// device and on the host.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Node {
    pub(super) change: [i64; 2],
    pub(super) top: [i64; 2],
}

impl Node {
    const NONE: Node = Node {
        change: [0; 2],
        top: [i64::MIN / 4; 2],
    };

    fn then(self, next: Node) -> Node {
        Node {
            change: [0, 1].map(|of| self.change[of] + next.change[of]),
            top: [0, 1].map(|of| self.top[of].max(self.change[of] + next.top[of])),
        }
    }
}

/// The highest moment of each node on the device.
fn tops<'n>(nodes: impl Iterator<Item = &'n Node>) -> impl Iterator<Item = i64> {
    let mut held = 0;
    nodes.map(move |node| {
        held += node.change[0];
        held - node.change[0] + node.top[0]
    })
}

/// A change that can be undone.
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
    pub(super) nodes: Vec<Node>,
    /// Where each run is.
    keys: Vec<Key>,
    unused: Vec<u32>,
    /// The runs of each operation, in order.
    pub(super) of: Vec<SmallVec<[u32; 2]>>,
    pub(super) buckets: Vec<Vec<u32>>,
    tree: Vec<Node>,
    /// Buckets whose moments have changed.
    dirty: BTreeSet<usize>,
    /// No run before the first bucket has made the value, and none beyond the second has read it, by value.
    pub(super) within: Vec<(u32, u32)>,
    pub(super) seconds: f64,
    pub(super) changes: Vec<Change>,
    /// A measure of the time that has been spent.
    pub(super) work: u64,
}

impl<'a> Runs<'a> {
    /// The runs of a list of operations.
    pub(super) fn of(net: &'a Net<'a>, order: &[u32]) -> Runs<'a> {
        let mut all = Runs {
            net,
            runs: Vec::with_capacity(order.len()),
            nodes: Vec::with_capacity(order.len()),
            keys: Vec::with_capacity(order.len()),
            unused: Vec::new(),
            of: vec![SmallVec::new(); net.ops.len()],
            buckets: vec![Vec::new(); net.ranks],
            tree: vec![Node::NONE; 2 * net.ranks.next_power_of_two()],
            dirty: BTreeSet::new(),
            within: vec![(u32::MAX, 0); net.values.len()],
            seconds: 0.0,
            changes: Vec::new(),
            work: 0,
        };
        // The bucket of a run is that of the next recorded operation that runs for the first time.
        let mut buckets: Vec<u32> = vec![net.ranks as u32 - 1; order.len()];
        let mut ran = vec![false; net.ops.len()];
        for (bucket, &op) in buckets.iter_mut().zip(order) {
            if !net.moves(op) && !std::mem::replace(&mut ran[op as usize], true) {
                *bucket = op;
            }
        }
        for run in (1..buckets.len()).rev() {
            buckets[run - 1] = buckets[run - 1].min(buckets[run]);
        }
        for (&op, bucket) in order.iter().zip(buckets) {
            all.insert(op, key(bucket, all.buckets[bucket as usize].len() as u32));
            all.changes.clear();
        }
        all.settle();
        all.work = 0;
        all
    }

    /// The operations, in order.
    pub(super) fn order(&self) -> Vec<u32> {
        let runs = self.buckets.iter().flatten();
        runs.map(|&run| self.runs[run as usize].op).collect()
    }

    /// The operation of a run.
    pub(super) fn op(&self, run: u32) -> &'a Op {
        &self.net.ops[self.runs[run as usize].op as usize]
    }

    /// The most bytes besides those held at every moment.
    pub(super) fn peak(&self) -> i64 {
        debug_assert!(self.dirty.is_empty());
        self.tree[1].top[0]
    }

    pub(super) fn host_peak(&self) -> i64 {
        self.tree[1].top[1]
    }

    /// The highest moment of each bucket.
    pub(super) fn tops(&self) -> impl Iterator<Item = i64> {
        let leaves = self.tree[self.tree.len() / 2..].iter();
        tops(leaves.take(self.net.ranks))
    }

    /// The bytes above the room, of all moments: together they may be more than an `i64` holds.
    pub(super) fn overflow(&self, room: Room) -> f64 {
        let device = self.tops().map(|top| top - room.device);
        let over = [self.host_peak() - room.host].into_iter().chain(device);
        over.fold(0.0, |all, over| all + over.max(0) as f64)
    }

    /// The run of a bucket that is its highest moment.
    pub(super) fn highest(&self, bucket: usize) -> u32 {
        let runs = self.buckets[bucket].iter().copied();
        let tops = tops(runs.clone().map(|run| &self.nodes[run as usize]));
        let highest = tops.zip(runs).min_by_key(|&(top, _)| Reverse(top));
        highest.map_or(0, |(_, run)| run)
    }

    /// Brings the tree up to date, after changes and before it is asked.
    pub(super) fn settle(&mut self) {
        while let Some(bucket) = self.dirty.pop_first() {
            let runs = &self.buckets[bucket];
            let nodes = runs.iter().map(|&run| self.nodes[run as usize]);
            let mut node = self.tree.len() / 2 + bucket;
            self.tree[node] = nodes.fold(Node::NONE, Node::then);
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
    }

    /// The run at a place.
    pub(super) fn at(&self, place: Key) -> u32 {
        self.buckets[bucket(place)][place as u32 as usize]
    }

    /// Whether a run has not been removed.
    pub(super) fn is_there(&self, run: u32) -> bool {
        self.of[self.runs[run as usize].op as usize].contains(&run)
    }

    pub(super) fn key(&self, run: u32) -> Key {
        self.keys[run as usize]
    }

    /// The number of runs of an operation before a place.
    fn count_before(&self, op: u32, place: Key) -> usize {
        let runs = &self.of[op as usize];
        runs.partition_point(|&run| self.key(run) < place)
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

    /// The last run of one of some operations before a place.
    fn last_of(&self, ops: &[u32], place: Key) -> Option<u32> {
        let last = ops.iter().filter_map(|&op| self.before(op, place));
        last.max_by_key(|&run| self.key(run))
    }

    /// The last run that makes a value, before a place.
    pub(super) fn made_before(&self, value: u32, place: Key) -> Option<u32> {
        self.last_of(&self.net.values[value as usize].makers, place)
    }

    /// The last run that reads a value, between two places.
    pub(super) fn last_read(&self, value: u32, after: Key, before: Key) -> Option<u32> {
        let last = self.last_of(&self.net.values[value as usize].readers, before);
        last.filter(|&run| self.key(run) > after)
    }

    /// Where a value is read next, after a place.
    pub(super) fn next_read(&self, value: u32, after: Key) -> Key {
        self.next_of(&self.net.values[value as usize].readers, after)
    }

    /// The run after which the value that a run makes is freed.
    pub(super) fn end(&self, value: u32, made: u32) -> u32 {
        let mut ends = self.runs[made as usize].ends.iter();
        let end = ends.find(|(one, _)| *one == value);
        end.map_or(made, |(_, end)| *end)
    }

    /// The first place where a run can be: after the same operation before, and what makes its inputs.
    pub(super) fn earliest(&mut self, run: u32) -> Key {
        let (from, inputs) = (self.key(run), self.op(run).inputs.iter());
        self.work += inputs.len() as u64;
        let made = inputs.filter_map(|&value| self.made_before(value, from));
        let made = made.chain(self.before(self.runs[run as usize].op, from));
        made.map(|run| self.key(run) + 1).max().unwrap_or(0)
    }

    /// The run that made a value, if this is held at a place and beyond.
    pub(super) fn holds(&self, value: u32, place: Key) -> Option<u32> {
        let made = self.made_before(value, place);
        made.filter(|&made| self.key(self.end(value, made)) > place)
    }

    /// Finds the run after which the value that a run makes is freed.
    fn free(&mut self, value: u32, made: u32) {
        let key = self.key(made);
        let again = self.next_of(&self.net.values[value as usize].makers, key);
        let last = self.last_read(value, key, again);
        self.free_after(value, made, last.unwrap_or(made));
    }

    /// Lets the value that a run makes be freed after another run.
    fn free_after(&mut self, value: u32, made: u32, end: u32) {
        let [device, host] = self.net.values[value as usize].bytes;
        for (end, sign) in [(self.end(value, made), -1), (end, 1)] {
            let reuses = self.op(end).reuses == Some(value);
            let Node { change, top } = &mut self.nodes[end as usize];
            change[0] -= sign * device;
            change[1] -= sign * host;
            if reuses {
                top[0] -= sign * device;
            }
            self.dirty.insert(bucket(self.key(end)));
        }
        let ends = self.runs[made as usize].ends.iter_mut();
        ends.filter(|one| one.0 == value)
            .for_each(|one| one.1 = end);
    }

    /// Inserts a run of an operation at a place, before the run that is there.
    pub(super) fn insert(&mut self, op: u32, place: Key) {
        let run = self.unused.pop().unwrap_or(self.runs.len() as u32);
        let of = &self.net.ops[op as usize];
        let ends = of.outputs.iter().map(|&value| (value, run)).collect();
        let new = Run { op, ends };
        let node = Node {
            change: [0; 2],
            top: of.top,
        };
        if run as usize == self.runs.len() {
            self.runs.push(new);
            self.nodes.push(node);
            self.keys.push(place);
        } else {
            self.runs[run as usize] = new;
            self.nodes[run as usize] = node;
        }
        self.change(run, place, true);
        let bucket = bucket(place) as u32;
        for &value in &of.outputs {
            self.free(value, run);
            let (first, _) = &mut self.within[value as usize];
            *first = bucket.min(*first);
        }
        for &value in &of.inputs {
            let (_, last) = &mut self.within[value as usize];
            *last = bucket.max(*last);
        }
    }

    /// Moves a run to another place, before which nothing reads what it makes.
    pub(super) fn relocate(&mut self, run: u32, place: Key) {
        self.insert(self.runs[run as usize].op, place);
        self.remove(run);
    }

    /// Removes a run.
    pub(super) fn remove(&mut self, run: u32) {
        for &value in &self.op(run).outputs {
            self.free_after(value, run, run);
        }
        self.change(run, self.key(run), false);
        self.unused.push(run);
    }

    fn change(&mut self, run: u32, place: Key, inserted: bool) {
        let op = self.runs[run as usize].op;
        self.changes.push(Change {
            op,
            place,
            inserted,
            seconds: self.seconds,
        });
        let of = self.op(run);
        let (among, first) = (self.count_before(op, place), place as u32);
        let runs = &mut self.of[op as usize];
        let list = &mut self.buckets[bucket(place)];
        if inserted {
            runs.insert(among, run);
            list.insert(first as usize, run);
            self.seconds += of.seconds;
        } else {
            runs.remove(among);
            list.remove(first as usize);
            self.seconds -= of.seconds;
        }
        for (place, run) in (place..).zip(&list[first as usize..]) {
            self.keys[*run as usize] = place;
        }
        self.dirty.insert(bucket(place));
        // What may end otherwise with the run than without it.
        for &value in of.outputs.iter().chain(&of.inputs) {
            if let Some(made) = self.made_before(value, place) {
                self.free(value, made);
            }
        }
        self.work += 2 * (of.inputs.len() + of.outputs.len()) as u64;
    }

    /// Whether a program without this run is one.
    pub(super) fn removable(&self, run: u32) -> bool {
        let made_before = |value| self.made_before(value, self.key(run)).is_some();
        let mut ends = self.runs[run as usize].ends.iter();
        !self.op(run).fixed && ends.all(|&(value, end)| end == run || made_before(value))
    }

    /// Whether nothing reads what a run makes before a place, or before it is made again.
    pub(super) fn unread(&self, run: u32, place: Key) -> bool {
        let read = |value| self.next_read(value, self.key(run));
        let mut ends = self.runs[run as usize].ends.iter();
        ends.all(|&(value, end)| end == run || read(value) >= place)
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
        for change in self.changes.split_off(to).into_iter().rev() {
            match change.inserted {
                true => self.remove(self.at(change.place)),
                false => self.insert(change.op, change.place),
            }
            self.seconds = change.seconds;
        }
        self.changes.truncate(to);
        self.settle();
    }
}
