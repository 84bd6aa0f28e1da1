//! The least time of a small graph, by A* over the sets of held tensors.
//!
//! A state is the set of held tensors and of draws already made. From a state, any operation may run whose inputs are
//! held, and any storage may be freed if an operation lacks room. The heuristic is the time of all operations that must
//! still run at least once: those that make the wanted tensors that are not held, their inputs that are not held, and
//! so on. It is admissible and consistent, so the first final state is optimal (Hart, Nilsson & Raphael 1968, IEEE
//! Trans. SSC 4(2)). A tensor with a host copy needs either its maker or its fetch.
//!
//! Two tensors share a storage if they are views of one tensor. Recomputing a tensor drops its old views, which a
//! general program need not do. Cost: at most the allowed number of states times the operations.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::index::Index;
use super::{Graph, OperationId, TensorId, Transfer};

/// Maximum number of tensors: the bits of a state.
const MOST_TENSORS: usize = u64::BITS as usize;

/// A set of tensors or of operations of a problem.
type Set = u64;

/// A search problem: the operations that lead from no tensors to the wanted ones.
pub(super) struct Problem {
    steps: Vec<Step>,
    /// The members and the bytes of each storage.
    storages: Vec<(Set, u64)>,
    /// The copies on the host, and the bytes of each there.
    copies: Vec<(Set, u64)>,
    wanted: Set,
    room: u64,
    host_room: u64,
}

struct Step {
    id: OperationId,
    inputs: Set,
    outputs: Set,
    /// The outputs and all their views, which another run drops.
    replaced: Set,
    new_bytes: u64,
    temp_bytes: u64,
    /// The input whose storage it may reuse, with its storage.
    in_place: Option<(Set, usize)>,
    seconds: f64,
    /// Its bit, if it runs only once.
    draw: Set,
    transfer: Option<Transfer>,
}

/// The held tensors, and the draws already made.
type State = (Set, Set);

struct Visited {
    seconds: f64,
    from: Option<(State, Option<OperationId>)>,
    done: bool,
}

impl Problem {
    /// The problem of computing a graph's outputs within this many bytes above the fixed ones, and this many on the
    /// host; `None` if there are too many tensors or operations, or updates.
    pub(super) fn of(
        graph: &Graph,
        index: &Index,
        (room, host_room): (u64, u64),
    ) -> Option<Problem> {
        let mut numbers: HashMap<TensorId, usize> = HashMap::new();
        let mut storages: Vec<(Set, u64)> = Vec::new();
        let mut storage_of: HashMap<TensorId, usize> = HashMap::new();
        for tensor in graph.tensor_ids().filter(|&id| !graph.tensor(id).given) {
            let number = numbers.len();
            if number == MOST_TENSORS {
                return None;
            }
            numbers.insert(tensor, number);
            let root = index.root(tensor);
            // The bytes of a given tensor's views are counted with the tensor.
            let bytes = match graph.tensor(root).given {
                true => 0,
                false => graph.tensor(root).bytes.0,
            };
            let storage = *storage_of.entry(root).or_insert_with(|| {
                storages.push((0, bytes));
                storages.len() - 1
            });
            storages[storage].0 |= 1 << number;
        }
        let set = |tensors: &[TensorId]| {
            let numbers = tensors.iter().filter_map(|tensor| numbers.get(tensor));
            numbers.fold(0, |set: Set, number| set | 1 << number)
        };
        let mut steps = Vec::with_capacity(graph.operations.len());
        for (place, id) in graph.operation_ids().enumerate() {
            let operation = graph.operation(id);
            if operation.updates.is_some() || place >= MOST_TENSORS {
                return None;
            }
            let outputs = set(&operation.outputs);
            let sizes = operation
                .outputs
                .iter()
                .map(|&output| graph.tensor(output).bytes.0);
            let in_place = operation.in_place.and_then(|place| {
                let input = *operation.inputs.get(place)?;
                let storage = *storage_of.get(&index.root(input))?;
                let output = graph.tensor(*operation.outputs.first()?);
                let once = operation.inputs.iter().filter(|&&one| one == input).count() == 1;
                let fits = once && !operation.view && storages[storage].1 == output.bytes.0;
                (fits && !graph.tensor(index.root(input)).given).then(|| (set(&[input]), storage))
            });
            let views = operation.outputs.iter().filter(|_| !operation.view);
            let views = views.filter_map(|output| storage_of.get(output));
            steps.push(Step {
                id,
                inputs: set(&operation.inputs),
                outputs,
                replaced: views.fold(outputs, |set, &storage| set | storages[storage].0),
                new_bytes: if operation.view { 0 } else { sizes.sum() },
                temp_bytes: operation.temp_bytes.0,
                in_place,
                seconds: operation.seconds.0,
                draw: if operation.repeatable { 0 } else { 1 << place },
                transfer: operation.transfer,
            });
        }
        let on_host = |(tensor, number): (&TensorId, &usize)| {
            let bytes = graph.tensor(*tensor).host_bytes.0;
            (bytes > 0).then_some((1 << *number, bytes))
        };
        Some(Problem {
            steps,
            storages,
            copies: numbers.iter().filter_map(on_host).collect(),
            wanted: set(&graph.outputs().collect::<Vec<_>>()),
            room,
            host_room,
        })
    }

    /// The fastest order, with repeated operations; `None` if none fits, or none is found within `states` states.
    pub(super) fn solve(&self, mut states: usize) -> Option<Vec<OperationId>> {
        let mut visited: HashMap<State, Visited> = HashMap::new();
        let mut open: BinaryHeap<Reverse<(u64, State)>> = BinaryHeap::new();
        let start = (0, 0);
        let first = Visited {
            seconds: 0.0,
            from: None,
            done: false,
        };
        visited.insert(start, first);
        open.push(Reverse((0, start)));
        while let Some(Reverse((_, state))) = open.pop() {
            let Some(here) = visited.get_mut(&state) else {
                continue;
            };
            if std::mem::replace(&mut here.done, true) {
                continue;
            }
            if state.0 & self.wanted == self.wanted {
                return Some(order(&visited, state));
            }
            states = states.checked_sub(1)?;
            let seconds = here.seconds;
            let mut reach = |next: State, run: Option<&Step>| {
                let seconds = seconds + run.map_or(0.0, |step| step.seconds);
                let known = visited.get(&next);
                if known.is_some_and(|known| known.done || known.seconds <= seconds) {
                    return;
                }
                let Some(left) = self.left(next) else {
                    return;
                };
                let visit = Visited {
                    seconds,
                    from: Some((state, run.map(|step| step.id))),
                    done: false,
                };
                visited.insert(next, visit);
                // Times are not negative, so their bits sort like their values.
                open.push(Reverse(((seconds + left).to_bits(), next)));
            };
            let [mut lacks_room, mut lacks_host_room] = [false; 2];
            for step in &self.steps {
                if !self.can_run(step, state) {
                    continue;
                }
                let kept = state.0 & !step.replaced;
                let after = (kept | step.outputs, state.1 | step.draw);
                if bytes(&self.copies, after.0) > self.host_room {
                    lacks_host_room = true;
                    continue;
                }
                let needed = bytes(&self.storages, kept) + step.new_bytes + step.temp_bytes;
                if needed <= self.room {
                    reach(after, Some(step));
                    continue;
                }
                lacks_room = true;
                let Some((input, storage)) = step.in_place else {
                    continue;
                };
                let (members, taken) = self.storages[storage];
                // Nothing else may hold the storage.
                if (members & !input) & step.inputs == 0 && needed - taken <= self.room {
                    reach((after.0 & !members, after.1), Some(step));
                }
            }
            if lacks_host_room {
                for (copy, _) in self.copies.iter().filter(|(copy, _)| state.0 & copy != 0) {
                    reach((state.0 & !copy, state.1), None);
                }
            }
            if lacks_room {
                for (members, bytes) in &self.storages {
                    if state.0 & members != 0 && *bytes > 0 {
                        reach((state.0 & !members, state.1), None);
                    }
                }
            }
        }
        None
    }

    fn can_run(&self, step: &Step, (held, drawn): State) -> bool {
        step.inputs & !held == 0 && step.outputs & !held != 0 && step.draw & drawn == 0
    }

    /// The seconds of all operations that must still run; `None` if a wanted tensor can no longer be made.
    fn left(&self, (held, drawn): State) -> Option<f64> {
        let mut missing = self.wanted & !held;
        let mut made = 0;
        let mut seconds = 0.0;
        while missing & !made != 0 {
            let next: Set = 1 << (missing & !made).trailing_zeros();
            let maker = self.steps.iter().find(|step| step.outputs & next != 0)?;
            let fetch = self.steps.iter().rev().find(|step| {
                let there = step.outputs & next != 0 && step.inputs & !held == 0;
                there && step.transfer == Some(Transfer::Fetch)
            });
            if let Some(fetch) = fetch {
                made |= next;
                seconds += match (maker.draw & drawn, maker.outputs == next) {
                    (0, true) => fetch.seconds.min(maker.seconds),
                    // Its maker may also run for another output.
                    (0, false) => 0.0,
                    _ => fetch.seconds,
                };
                continue;
            }
            if maker.draw & drawn != 0 {
                return None;
            }
            made |= maker.outputs;
            seconds += maker.seconds;
            missing |= maker.inputs & !held;
        }
        Some(seconds)
    }
}

/// The bytes of the storages of which any tensor is held.
fn bytes(storages: &[(Set, u64)], held: Set) -> u64 {
    let storages = storages.iter();
    storages
        .filter(|(members, _)| held & members != 0)
        .map(|(_, bytes)| bytes)
        .sum()
}

/// The runs that led to a state.
fn order(visited: &HashMap<State, Visited>, mut state: State) -> Vec<OperationId> {
    let mut runs = Vec::new();
    while let Some((before, run)) = visited.get(&state).and_then(|visited| visited.from) {
        runs.extend(run);
        state = before;
    }
    runs.reverse();
    runs
}
