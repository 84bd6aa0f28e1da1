//! One walk through a list of operations under a budget: tensors that do not fit are evicted, missing ones are
//! recomputed.
//!
//! The walk follows an *outline*: any list of operations, usually the recorded order or a program to improve. At each
//! operation it recomputes missing inputs, recursively if necessary, and makes room for the outputs by evicting the
//! storage with the highest score
//! ```text
//! score = bytes^a distance^b / (regain + w dependents)^c
//! ```
//! `distance` is the number of outline steps until the storage is needed, `regain` the seconds of all operations that
//! would be needed to recompute it from the tensors held now, and `dependents` the seconds of evicted tensors that
//! would be recomputed from it: the evicted neighbourhood of Kirisame et al. 2021 (DTR, arXiv 2006.09616), with the
//! known next use in place of their staleness. With a = c = 0 it is Belady's rule for caches, with b = 0 the bytes
//! freed per second of recomputation.
//!
//! Nothing is freed before room is needed. Unneeded storages are evicted first; then those that the outline itself
//! recomputes before it reads them, so that a walk along a program keeps tensors if there is room and skips their
//! recompute; then the others by score. An operation of the outline whose needed outputs are all held is skipped. Runs
//! whose results turn out to be unused are removed afterwards by
//! [`Program::without_dead_runs`](super::Program::without_dead_runs), so evicting a tensor before its first use delays
//! the operation that makes it.
//!
//! Tensors that can never be recomputed (random draws, and tensors made from lost ones) are not evicted while anything
//! may still need them.
//!
//! `state.rs` has the state of a walk, `score.rs` the scores, `room.rs` evictions, `host.rs` offloading instead of
//! dropping, `places.rs` the next uses. Cost: O(log n) per run and eviction, times the size of the evicted
//! neighbourhood, which is bounded.

mod host;
mod places;
mod room;
mod score;
mod state;

use super::{OperationId, TensorId};
use score::Want;
use state::{END, GIVEN, NONE, Walk};
pub(crate) use state::{Scoring, WalkTask};

impl WalkTask<'_> {
    /// The operations to run, or `None` where the walk finds no way within the room; and the work
    /// done: operations run and looked at.
    pub(crate) fn walk(&self, outline: &[OperationId]) -> (Option<Vec<OperationId>>, usize) {
        let mut walk = Walk::new(self, outline);
        let ended = walk.follow(outline);
        let work = walk.work;
        (ended.map(|()| walk.into_runs()), work)
    }
}

impl Walk<'_> {
    /// Runs the outline's operations as far as needed, and at the end the makers of missing graph outputs.
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
        for tensor in graph.outputs() {
            self.pins[tensor.index()] += 1;
        }
        for tensor in graph.outputs() {
            if !self.live(tensor) {
                let source = self.source(tensor)?;
                self.demand(source)?;
            }
        }
        Some(())
    }

    fn live(&self, tensor: TensorId) -> bool {
        self.of[tensor.index()] != NONE
    }

    /// Whether an operation of the outline makes a tensor that is needed and not held.
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

    /// The operation is skipped: the next use of its inputs is later than before.
    fn touch_inputs(&mut self, id: OperationId) {
        for &input in &self.graph.operation(id).inputs {
            self.enqueue(self.of[input.index()]);
        }
    }

    /// Runs an operation, after the operations that make its missing inputs.
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
                let source = self.source(input)?;
                if self.ran[source.index()] && !self.graph.operation(source).repeatable {
                    return None;
                }
                self.pin(source);
                pending.push(source);
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
            let storage = &mut self.storages[storage as usize];
            storage.born = self.runs.len() - 1;
            for tensor in std::mem::take(&mut storage.tensors) {
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
        self.note_held();
        Some(())
    }
}
