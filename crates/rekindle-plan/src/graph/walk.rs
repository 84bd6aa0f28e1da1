//! One walk through a list of operations under a budget: what does not fit is evicted, what is missing is made again.
//!
//! The walk follows an *outline*, any list of operations, usually the recorded order or a program to be improved. At each
//! operation it makes the inputs that are missing, from their own inputs if need be, and frees room for the outputs by
//! evicting the storage with the highest score
//! ```text
//! score = bytes^a distance^b / (regain + w dependents)^c
//! ```
//! `distance` is the number of outline steps until the storage is wanted, `regain` the seconds of all operations that would
//! have to run to make it again from what is held now, `dependents` those of evicted tensors that would be made again
//! from it: the evicted neighbourhood of Kirisame et al. 2021 (DTR, arXiv 2006.09616, section 3), with the known next use
//! in place of their staleness. With a = b = 0 this is Belady's rule weighted by nothing, with b = 0 the cost per byte
//! of Chen et al. 2016.
//!
//! Nothing is freed before room is needed. Storages that nobody wants go first; then those that the outline itself makes
//! again before it reads them, so that a walk along a program keeps what has room and drops the recomputation; then the
//! others by score. An operation of the outline whose wanted outputs are all held is skipped. Runs that turn out to serve nothing are left
//! out by [`Program::without_dead_runs`](super::Program::without_dead_runs) afterwards, so evicting a tensor before its
//! first use delays the operation that makes it.
//!
//! What can never be made again (random draws, and what was made from lost ones) is not evicted while anything may
//! still want it.
//!
//! Cost: O(log n) per run and eviction, times the size of the evicted neighbourhood, which is cut off at [`REACH`].

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::index::Index;
use super::{Graph, Operation, OperationId, TensorId};

/// How many evicted operations a regain looks through before its cost is taken as it stands.
const REACH: usize = 96;
/// A walk that runs and looks at more operations than this per operation of the outline is given up.
const MOST_WORK: usize = 400;
/// Later than any place in an outline: the end, where the graph's outputs are wanted.
const END: u32 = u32::MAX - 1;
/// Never wanted again.
const NEVER: u32 = u32::MAX;
/// No storage.
const NONE: u32 = u32::MAX;

/// How a walk chooses what to evict.
#[derive(Clone, Debug)]
pub(crate) struct Scoring {
    /// a.
    pub(crate) bytes: f64,
    /// b.
    pub(crate) distance: f64,
    /// c.
    pub(crate) cost: f64,
    /// w.
    pub(crate) dependents: f64,
}

/// The walk's task.
pub(crate) struct Task<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) index: &'a Index,
    /// The most bytes above the graph's fixed ones.
    pub(crate) room: u64,
    pub(crate) scoring: &'a Scoring,
    /// A factor on the score of each tensor's storage, by its first tensor; empty for none.
    pub(crate) bias: &'a [f64],
}

impl Task<'_> {
    /// The operations to run, or `None` where the walk finds no way within the room; and the work
    /// done: operations run and looked at.
    pub(crate) fn walk(&self, outline: &[OperationId]) -> (Option<Vec<OperationId>>, usize) {
        let mut walk = Walk::new(self, outline);
        let ended = walk.follow(outline);
        (ended.map(|()| walk.runs), walk.work)
    }
}

/// Places in the outline, by tensor or by operation, each list with a cursor.
struct Places {
    places: Vec<u32>,
    next: Vec<u32>,
    ends: Vec<u32>,
}

impl Places {
    fn new(count: usize, pairs: impl Iterator<Item = (usize, u32)> + Clone) -> Places {
        let mut ends = vec![0_u32; count];
        for (index, _) in pairs.clone() {
            ends[index] += 1;
        }
        let mut total = 0;
        let mut next = Vec::with_capacity(count);
        for end in &mut ends {
            next.push(total);
            total += *end;
            *end = total;
        }
        let mut fill = next.clone();
        let mut places = vec![0; total as usize];
        for (index, place) in pairs {
            places[fill[index] as usize] = place;
            fill[index] += 1;
        }
        Places { places, next, ends }
    }

    /// The first place after `now`; `now` never falls.
    fn after(&mut self, index: usize, now: u32) -> u32 {
        let end = self.ends[index];
        let cursor = &mut self.next[index];
        while *cursor < end && self.places[*cursor as usize] <= now {
            *cursor += 1;
        }
        if *cursor < end {
            self.places[*cursor as usize]
        } else {
            NEVER
        }
    }
}

/// When the walk wants a tensor next.
#[derive(Clone, Copy, PartialEq)]
enum Want {
    /// At a place of the outline.
    At(u32),
    /// The outline makes it again first.
    Remade,
    /// Never.
    Never,
}

struct Storage {
    bytes: u64,
    tensors: Vec<TensorId>,
    /// Tells an entry of the queue whether it is still about this storage.
    alive: bool,
}

/// A storage in the queue of those to evict, with a score that was right when it was put there.
struct Entry {
    score: f64,
    storage: u32,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        // Equal scores: the older storage first.
        self.score
            .total_cmp(&other.score)
            .then(other.storage.cmp(&self.storage))
    }
}

struct Walk<'a> {
    task: &'a Task<'a>,
    graph: &'a Graph,
    index: &'a Index,
    /// The place in the outline.
    now: u32,
    uses: Places,
    makes: Places,
    storages: Vec<Storage>,
    of: Vec<u32>,
    used: u64,
    ran: Vec<bool>,
    /// How many pending operations read each tensor.
    pins: Vec<u32>,
    queue: BinaryHeap<Entry>,
    runs: Vec<OperationId>,
    work: usize,
    most_work: usize,
    /// Marks of the current traversal, by operation.
    seen: Vec<u32>,
    traversal: u32,
}

/// The storage of given tensors.
const GIVEN: u32 = 0;

impl<'a> Walk<'a> {
    fn new(task: &'a Task<'a>, outline: &[OperationId]) -> Walk<'a> {
        let graph = task.graph;
        let places = || outline.iter().zip(0_u32..);
        let reads = places().flat_map(|(id, place)| {
            let inputs = graph.operation(*id).inputs.iter();
            inputs.map(move |input| (input.index(), place))
        });
        let given = |tensor: &super::Tensor| if tensor.given { GIVEN } else { NONE };
        Walk {
            task,
            graph,
            index: task.index,
            now: 0,
            uses: Places::new(graph.tensors.len(), reads),
            makes: Places::new(
                graph.operations.len(),
                places().map(|(id, place)| (id.index(), place)),
            ),
            storages: vec![Storage {
                bytes: 0,
                tensors: Vec::new(),
                alive: true,
            }],
            of: graph.tensors.iter().map(given).collect(),
            used: 0,
            ran: vec![false; graph.operations.len()],
            pins: vec![0; graph.tensors.len()],
            queue: BinaryHeap::new(),
            runs: Vec::with_capacity(outline.len()),
            work: 0,
            most_work: MOST_WORK * outline.len().max(16),
            seen: vec![0; graph.operations.len()],
            traversal: 0,
        }
    }

    /// Runs what every operation of the outline is for, and at the end what the graph's outputs lack.
    fn follow(&mut self, outline: &[OperationId]) -> Option<()> {
        for (place, &id) in outline.iter().enumerate() {
            self.now = place as u32;
            if self.serves(id) {
                self.demand(id)?;
            } else {
                self.touch_inputs(id);
            }
        }
        self.now = END - 1;
        let graph = self.graph;
        let outputs = graph.tensor_ids().filter(|&t| graph.tensor(t).output);
        for tensor in outputs {
            self.regain_output(tensor)?;
        }
        Some(())
    }

    fn live(&self, tensor: TensorId) -> bool {
        self.of[tensor.index()] != NONE
    }

    fn want(&mut self, tensor: TensorId) -> Want {
        let use_at = match self.uses.after(tensor.index(), self.now) {
            NEVER if self.graph.tensor(tensor).output => END,
            place => place,
        };
        if use_at == NEVER {
            return Want::Never;
        }
        let remade = self.index.maker(tensor).is_some_and(|maker| {
            self.graph.operation(maker).repeatable
                && self.makes.after(maker.index(), self.now) < use_at
        });
        if remade {
            Want::Remade
        } else {
            Want::At(use_at)
        }
    }

    /// Whether running an operation of the outline gives anything that is wanted and not held.
    fn serves(&mut self, id: OperationId) -> bool {
        let operation = self.graph.operation(id);
        if self.ran[id.index()] && !operation.repeatable {
            return false;
        }
        operation
            .outputs
            .iter()
            .any(|&output| !self.live(output) && matches!(self.want(output), Want::At(_)))
    }

    /// The operation will not run here: its inputs are wanted later than they were.
    fn touch_inputs(&mut self, id: OperationId) {
        for &input in &self.graph.operation(id).inputs {
            self.enqueue(self.of[input.index()]);
        }
    }

    fn regain_output(&mut self, tensor: TensorId) -> Option<()> {
        if !self.live(tensor) {
            let maker = self.index.maker(tensor)?;
            self.demand(maker)?;
        }
        Some(())
    }

    /// Runs an operation and before it whatever makes its missing inputs.
    fn demand(&mut self, id: OperationId) -> Option<()> {
        let mut pending = vec![id];
        self.pin(id);
        while let Some(&top) = pending.last() {
            let missing = self
                .graph
                .operation(top)
                .inputs
                .iter()
                .find(|&&input| !self.live(input));
            if let Some(&input) = missing {
                let maker = self.index.maker(input)?;
                if self.ran[maker.index()] && !self.graph.operation(maker).repeatable {
                    return None;
                }
                self.pin(maker);
                pending.push(maker);
                continue;
            }
            self.run(top)?;
            pending.pop();
        }
        Some(())
    }

    fn pin(&mut self, id: OperationId) {
        for input in &self.graph.operation(id).inputs {
            self.pins[input.index()] += 1;
        }
    }

    fn unpin(&mut self, id: OperationId) {
        for input in &self.graph.operation(id).inputs {
            self.pins[input.index()] -= 1;
        }
    }

    /// Runs an operation whose inputs are all held.
    fn run(&mut self, id: OperationId) -> Option<()> {
        self.work += 1;
        if self.work > self.most_work {
            return None;
        }
        let operation = self.graph.operation(id);
        for &output in &operation.outputs {
            self.forget(output);
        }
        let new: u64 = if operation.view {
            0
        } else {
            let bytes = |t: &TensorId| self.graph.tensor(*t).bytes.0;
            operation.outputs.iter().map(bytes).sum()
        };
        let mut taken = self.make_room(new + operation.temp_bytes.0, operation)?;
        self.runs.push(id);
        self.ran[id.index()] = true;
        self.unpin(id);
        if let Some(storage) = taken {
            for tensor in std::mem::take(&mut self.storages[storage as usize].tensors) {
                self.of[tensor.index()] = NONE;
            }
        }
        for &output in &operation.outputs {
            let storage = if operation.view {
                self.of[operation.inputs[0].index()]
            } else {
                taken.take().unwrap_or_else(|| self.allocate(output))
            };
            self.of[output.index()] = storage;
            if storage != GIVEN {
                self.storages[storage as usize].tensors.push(output);
            }
        }
        self.requeue(operation);
        Some(())
    }

    fn allocate(&mut self, tensor: TensorId) -> u32 {
        let bytes = self.graph.tensor(tensor).bytes.0;
        self.used += bytes;
        self.storages.push(Storage {
            bytes,
            tensors: Vec::with_capacity(1),
            alive: true,
        });
        (self.storages.len() - 1) as u32
    }

    /// The storage that an in-place operation may take over, if nothing but this operation holds on to it.
    fn replaceable(&self, operation: &Operation) -> Option<u32> {
        let input = operation.inputs[operation.in_place?];
        let output = *operation.outputs.first()?;
        let storage = self.of[input.index()];
        let held = self.storages.get(storage as usize)?;
        let same_size = held.bytes == self.graph.tensor(output).bytes.0;
        let free = held.tensors.iter().all(|&tensor| {
            let pins = self.pins[tensor.index()];
            pins == u32::from(tensor == input)
        });
        (!operation.view && storage != GIVEN && same_size && free).then_some(storage)
    }

    /// Takes an older value of a tensor out of its storage.
    fn forget(&mut self, tensor: TensorId) {
        let storage = std::mem::replace(&mut self.of[tensor.index()], NONE);
        if storage == NONE || storage == GIVEN {
            return;
        }
        let held = &mut self.storages[storage as usize];
        held.tensors.retain(|&t| t != tensor);
        if held.tensors.is_empty() {
            held.alive = false;
            self.used -= held.bytes;
        }
    }

    fn evict(&mut self, storage: u32) {
        let held = &mut self.storages[storage as usize];
        held.alive = false;
        self.used -= held.bytes;
        for tensor in std::mem::take(&mut held.tensors) {
            self.of[tensor.index()] = NONE;
        }
    }

    /// Evicts until so many bytes are free for an operation. Where the best thing to evict is the input that the operation
    /// can overwrite, it returns that storage and counts it for the output.
    fn make_room(&mut self, mut bytes: u64, operation: &Operation) -> Option<Option<u32>> {
        if self.used + bytes <= self.task.room {
            return Some(None);
        }
        let overwritable = self.replaceable(operation);
        // Its use by this operation no longer counts.
        overwritable
            .into_iter()
            .for_each(|storage| self.enqueue(storage));
        let mut taken = None;
        let mut pinned = Vec::new();
        while self.used + bytes > self.task.room {
            let Some(entry) = self.queue.pop() else {
                break;
            };
            let held = &self.storages[entry.storage as usize];
            if !held.alive || taken == Some(entry.storage) {
                continue;
            }
            let overwrite = overwritable == Some(entry.storage);
            if !overwrite && held.tensors.iter().any(|t| self.pins[t.index()] > 0) {
                pinned.push(entry);
                continue;
            }
            let Some(score) = self.score(entry.storage) else {
                continue;
            };
            // Scores fall as time passes and neighbours are evicted: an old one is only an upper bound.
            if self.queue.peek().is_some_and(|next| next.score > score) {
                self.queue.push(Entry {
                    score,
                    storage: entry.storage,
                });
            } else if overwrite {
                taken = overwritable;
                bytes -= self.storages[entry.storage as usize].bytes;
            } else {
                self.evict(entry.storage);
            }
        }
        self.queue.extend(pinned);
        (self.used + bytes <= self.task.room).then_some(taken)
    }

    /// Whatever a run may have raised the scores of: its outputs are new, its inputs are wanted later, and what is made
    /// from its outputs is cheaper to regain.
    fn requeue(&mut self, operation: &Operation) {
        for tensor in operation.inputs.iter().chain(&operation.outputs) {
            self.enqueue(self.of[tensor.index()]);
        }
        for &output in &operation.outputs {
            for &reader in self.index.readers(output) {
                if self.ran[reader.index()] {
                    for made in &self.graph.operation(reader).outputs {
                        self.enqueue(self.of[made.index()]);
                    }
                }
            }
        }
    }

    fn enqueue(&mut self, storage: u32) {
        if storage == NONE || storage == GIVEN || self.storages[storage as usize].bytes == 0 {
            return;
        }
        if let Some(score) = self.score(storage) {
            self.queue.push(Entry { score, storage });
        }
    }

    /// The score of a held storage; `None` where it must stay.
    fn score(&mut self, storage: u32) -> Option<f64> {
        const UNWANTED: f64 = 1e200;
        const REMADE: f64 = 1e100;
        let tensors = std::mem::take(&mut self.storages[storage as usize].tensors);
        let score = self.score_of(&tensors, self.storages[storage as usize].bytes);
        let bias = tensors
            .first()
            .and_then(|t| self.task.bias.get(self.index.root(*t).index()))
            .copied()
            .unwrap_or(1.0);
        self.storages[storage as usize].tensors = tensors;
        let (class, score) = score?;
        let factor = match class {
            Want::Never => UNWANTED,
            Want::Remade => REMADE,
            Want::At(_) => 1.0,
        };
        Some(factor * bias * score)
    }

    fn score_of(&mut self, tensors: &[TensorId], bytes: u64) -> Option<(Want, f64)> {
        let mut wanted = NEVER;
        let mut remade = false;
        for &tensor in tensors {
            match self.want(tensor) {
                Want::At(place) => wanted = wanted.min(place),
                Want::Remade => remade = true,
                Want::Never => {}
            }
        }
        let dependents = self.dependents(tensors);
        let regain = self.regain_cost(tensors);
        let own = wanted;
        wanted = wanted.min(dependents.wanted);
        let class = match wanted {
            NEVER if remade => Want::Remade,
            NEVER => Want::Never,
            place => Want::At(place),
        };
        if class != Want::Never && regain.is_none() && (own != NEVER || dependents.wanted != NEVER)
        {
            return None;
        }
        let scoring = &self.task.scoring;
        let distance = match wanted {
            NEVER => 1.0,
            END => self.uses.places.len().max(1) as f64,
            place => f64::from(place.saturating_sub(self.now).max(1)),
        };
        // An operation that takes no time still costs a launch.
        const LEAST_SECONDS: f64 = 1e-9;
        let cost = regain.unwrap_or(0.0) + scoring.dependents * dependents.seconds + LEAST_SECONDS;
        let score = (bytes as f64).powf(scoring.bytes) * distance.powf(scoring.distance)
            / cost.powf(scoring.cost);
        Some((class, score))
    }

    fn start_traversal(&mut self) {
        self.traversal += 1;
    }

    fn first_visit(&mut self, id: OperationId) -> bool {
        std::mem::replace(&mut self.seen[id.index()], self.traversal) != self.traversal
    }

    /// The seconds to make tensors again from what else is held now; `None` where that cannot be done.
    fn regain_cost(&mut self, tensors: &[TensorId]) -> Option<f64> {
        self.start_traversal();
        let mut open: Vec<OperationId> = Vec::new();
        for &tensor in tensors {
            let maker = self.index.maker(tensor)?;
            if self.first_visit(maker) {
                open.push(maker);
            }
        }
        let mut seconds = 0.0;
        let mut visited = 0;
        while let Some(id) = open.pop() {
            let operation = self.graph.operation(id);
            if !operation.repeatable {
                return None;
            }
            seconds += operation.seconds.0;
            visited += 1;
            self.work += 1;
            for &input in &operation.inputs {
                if self.live(input) && !tensors.contains(&input) {
                    continue;
                }
                let maker = self.index.maker(input)?;
                if visited < REACH && self.first_visit(maker) {
                    open.push(maker);
                }
            }
        }
        Some(seconds)
    }

    /// The evicted tensors that would be made again from these.
    fn dependents(&mut self, tensors: &[TensorId]) -> Dependents {
        self.start_traversal();
        let mut found = Dependents {
            seconds: 0.0,
            wanted: NEVER,
        };
        let mut open: Vec<TensorId> = tensors.to_vec();
        let mut visited = 0;
        while let Some(tensor) = open.pop() {
            for &reader in self.index.readers(tensor) {
                if !self.ran[reader.index()] || !self.graph.operation(reader).repeatable {
                    continue;
                }
                if !self.first_visit(reader) {
                    continue;
                }
                if visited >= REACH {
                    found.wanted = found.wanted.min(END);
                    return found;
                }
                visited += 1;
                self.work += 1;
                let mut missing = false;
                for &output in &self.graph.operation(reader).outputs {
                    if self.live(output) {
                        continue;
                    }
                    missing = true;
                    if let Want::At(place) = self.want(output) {
                        found.wanted = found.wanted.min(place);
                    }
                    open.push(output);
                }
                if missing {
                    found.seconds += self.graph.operation(reader).seconds.0;
                }
            }
        }
        found
    }
}

/// The evicted tensors that depend on a storage.
struct Dependents {
    /// The seconds of the operations that make them.
    seconds: f64,
    /// When the first of them is wanted.
    wanted: u32,
}
