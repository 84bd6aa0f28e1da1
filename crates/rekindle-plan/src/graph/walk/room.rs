//! Makes room: the storages of a walk and the eviction queue.
//!
//! The queue holds scores that were correct when they were inserted. Scores only fall as the walk proceeds and
//! neighbours are evicted, so an old score is an upper bound: the top of the queue is scored again before it is
//! evicted. Events that can raise a score insert the storage again. Cost: O(log n) per run and eviction, times the size
//! of the evicted neighbourhood.

use super::super::{Operation, TensorId};
use super::state::{Entry, GIVEN, NONE, Storage, Walk};

impl Walk<'_> {
    /// A new storage for a tensor.
    pub(super) fn allocate(&mut self, tensor: TensorId) -> u32 {
        let bytes = self.graph.tensor(tensor).bytes.0;
        self.used += bytes;
        self.storages.push(Storage {
            bytes,
            tensors: Vec::with_capacity(1),
            born: self.runs.len() - 1,
            alive: true,
        });
        (self.storages.len() - 1) as u32
    }

    /// The storage that an in-place operation may reuse, if only this operation needs it.
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

    /// Removes an older value of a tensor from its storage.
    pub(super) fn forget(&mut self, tensor: TensorId) {
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

    /// Evicts until enough bytes are free for an operation. If the best candidate is the input that the operation can
    /// overwrite, returns that storage and counts it for the output.
    pub(super) fn make_room(
        &mut self,
        mut bytes: u64,
        operation: &Operation,
    ) -> Option<Option<u32>> {
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
            // Scores fall as the walk proceeds and neighbours are evicted: an old one is only an upper bound.
            if self.queue.peek().is_some_and(|next| next.score > score) {
                self.queue.push(Entry {
                    score,
                    storage: entry.storage,
                });
            } else if !self.save(entry.storage) {
                pinned.push(entry);
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

    /// Inserts the storages whose scores a run may have raised: its outputs are new, its inputs are needed later, and
    /// tensors made from its outputs are cheaper to recompute.
    pub(super) fn requeue(&mut self, operation: &Operation) {
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

    /// Inserts a storage into the queue with its current score.
    pub(super) fn enqueue(&mut self, storage: u32) {
        if storage == NONE || storage == GIVEN || self.storages[storage as usize].bytes == 0 {
            return;
        }
        if let Some(score) = self.score(storage) {
            self.queue.push(Entry { score, storage });
        }
    }
}
