//! The costs of a recording's operations, and the graph that is planned with them.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem,
};

use rekindle_plan::{
    Bytes, OptimizerCost, Seconds,
    graph::{Graph, Operation, Program, Tensor, TensorId},
};

use crate::record::{
    kernels::Kernels,
    layout::Alike,
    operation::{chooses, may_be_view, nominal_seconds},
    operations::RecordedOperation,
    options::Planning,
    recording::Recording,
    update_costs::UpdateCosts,
};

/// Bytes on the host besides its place in the table for each tensor that is passed to the interpreter, and for each parameter
/// that is updated on the way. Observed on the CPU backend.
const GIVEN_BYTES: u64 = 256;
const LENT_BYTES: u64 = 960;

/// Bytes on the host for each tensor that the step returns: its place among the outputs.
const HANDED_BYTES: u64 = 256;

/// Bytes of a place in the interpreter's table: a tensor's id, its handle and a byte of the hash.
const ENTRY_BYTES: u64 = 193;

/// Assumed overhead of a tensor on the host in bytes, besides its numbers, when nothing is measured.
const TENSOR_BYTES: u64 = 256;

/// Tensors of at least [`LARGE`] bytes are rounded up to a multiple of this.
pub(super) const ALIGNED: u64 = 256;
pub(super) const LARGE: u64 = 16 * 1024;

/// The cost of one operation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cost {
    /// Bytes of all its outputs together.
    pub(super) output_bytes: u64,
    pub(super) temp_bytes: u64,
    /// Bytes that threads may keep after it has run for the first time: none once it was measured.
    pub(super) kept_bytes: u64,
    pub(super) seconds: f64,
    pub(super) view: bool,
    pub(super) in_place: Option<usize>,
    /// Whether it was measured.
    pub(super) measured: bool,
}

/// Costs that were measured in other recordings.
#[derive(Default)]
pub(in crate::record) struct Known {
    /// By [`Alike::keys`].
    pub(super) costs: HashMap<u64, Cost>,
    pub(super) scratch_bytes: u64,
}

/// The costs of a recording's operations.
#[derive(Clone)]
pub(crate) struct Costs {
    pub(super) alike: Alike,
    /// By group.
    pub(super) costs: Vec<Cost>,
    /// Costs of the updates that the step itself makes.
    pub(in crate::record) updates: UpdateCosts,
    /// Memory that threads keep: measured, what they took while they were gathered, because a thread that did not take
    /// part may still take it in a step.
    pub(in crate::record) scratch_bytes: u64,
    /// In use on the host while they were measured, besides the step's own bytes.
    pub(in crate::record) measuring_bytes: Bytes,
    /// The unit that large tensors are rounded up to.
    pub(super) unit: u64,
}

impl Costs {
    /// Costs of a step with these updates before anything is measured. Tensors of at least a unit are rounded, as the device's
    /// driver does.
    pub(in crate::record) fn new(recording: &Recording, planning: &Planning) -> Self {
        Self {
            updates: planning.updates(),
            unit: planning.allocation_unit().0.max(ALIGNED),
            ..Self::estimated(recording, planning.on_host)
        }
    }

    /// Costs from what is known before: on the CPU the memory of kernels, else shapes alone.
    pub(in crate::record) fn estimated(recording: &Recording, on_host: bool) -> Self {
        match on_host {
            #[cfg(feature = "flex")]
            true => Self::of_kernels(recording, Kernels::host()),
            _ => Self::of_shapes(recording),
        }
    }

    /// Costs from shapes, with the known memory of kernels.
    pub(in crate::record) fn of_kernels(recording: &Recording, kernels: Kernels) -> Self {
        let taken = kernels.taken(recording);
        let mut costs = Self::of_shapes(recording);
        for (cost, &first) in costs.costs.iter_mut().zip(&costs.alike.first) {
            let taken = &taken[first];
            let numbers = values(recording, recording.operations.get(first));
            *cost = Cost {
                output_bytes: if taken.view {
                    0
                } else {
                    numbers + taken.beyond_bytes
                } + TENSOR_BYTES,
                temp_bytes: taken.temp_bytes,
                kept_bytes: taken.kept_bytes,
                view: taken.view,
                in_place: taken.in_place,
                ..*cost
            };
        }
        costs.scratch_bytes = costs.kept().iter().sum();
        costs
    }

    /// What threads keep after the operations that were not measured: after products on one thread, and on all.
    pub(super) fn kept(&self) -> BTreeSet<u64> {
        self.costs.iter().map(|cost| cost.kept_bytes).collect()
    }

    fn of_shapes(recording: &Recording) -> Self {
        let alike = Alike::new(recording);
        let cost = |&first: &usize| {
            let operation = recording.operations.get(first);
            let kind = operation.kind;
            let view = may_be_view(&kind.name) && kind.name != "Slice";
            let numbers = values(recording, operation);
            Cost {
                output_bytes: if view { 0 } else { numbers },
                temp_bytes: 0,
                kept_bytes: 0,
                seconds: nominal_seconds(&kind.name, &kind.operation).0,
                view,
                in_place: None,
                measured: false,
            }
        };
        Self {
            costs: alike.first.iter().map(cost).collect(),
            alike,
            updates: UpdateCosts::default(),
            scratch_bytes: 0,
            measuring_bytes: Bytes::ZERO,
            unit: ALIGNED,
        }
    }

    /// Costs for the same operations on smaller tensors; `None` if other operations cost the same there. What kernels take
    /// besides their outputs is no more, except that a product that is too small for all threads takes a slab of this one.
    pub(in crate::record) fn of_smaller(
        &self,
        (larger, smaller): (&Recording, &Recording),
        on_host: bool,
    ) -> Option<Self> {
        let [before, mut own] = [larger, smaller].map(|one| Self::estimated(one, on_host));
        let mut scratch_bytes = 0;
        let measured = self.costs.iter().zip(before.costs);
        for (own, (measured, before)) in own.costs.iter_mut().zip(measured) {
            if own.kept_bytes != before.kept_bytes {
                scratch_bytes = scratch_bytes.max(own.kept_bytes);
            }
            let smaller_by = before.output_bytes.saturating_sub(own.output_bytes);
            *own = Cost {
                output_bytes: match measured.view {
                    true => measured.output_bytes,
                    false => measured.output_bytes.saturating_sub(smaller_by),
                },
                seconds: measured.seconds * own.seconds / before.seconds,
                measured: false,
                ..measured.clone()
            };
        }
        (own.alike.group == self.alike.group).then(|| Self {
            updates: self.updates.clone(),
            scratch_bytes: self.scratch_bytes + scratch_bytes,
            unit: self.unit,
            ..own
        })
    }

    /// Whether every operation costs what it costs there.
    pub(in crate::record) fn are_of(&self, recording: &Recording) -> bool {
        self.alike == Alike::new(recording)
    }

    /// Adds to what is known.
    pub(in crate::record) fn tell(&self, known: &mut Known) {
        let keys = self.alike.keys.iter().copied();
        let costs = keys.zip(self.costs.iter().cloned());
        known.costs.extend(costs.filter(|(_, cost)| cost.measured));
        if self.costs.iter().any(|cost| cost.measured) {
            known.scratch_bytes = known.scratch_bytes.max(self.scratch_bytes);
        }
    }

    /// Headers differ by a few bytes between operations: tensors of one size are rounded to the same bytes, so that one may
    /// replace another.
    fn rounded(&self, bytes: u64) -> Bytes {
        Bytes(match bytes {
            ..LARGE => bytes,
            _ if bytes < self.unit => bytes.next_multiple_of(ALIGNED),
            _ => bytes.next_multiple_of(self.unit),
        })
    }

    pub(super) fn of(&self, number: usize) -> &Cost {
        &self.costs[self.alike.group[number] as usize]
    }

    /// Bytes held on the host while a program runs, besides the tensors' storage: the interpreter's table, the headers of
    /// views, and scratch memory that threads may still take.
    pub(crate) fn beside_tensors(&self, recording: &Recording, program: &Program) -> Bytes {
        // What the step returns leaves the table.
        let mut others: HashSet<usize> = recording.given().collect();
        let given = others.len();
        others.extend(recording.outputs());
        let lent = recording.updated().count() as u64;
        let mut bytes = vec![0; recording.tensors.len()];
        for (number, one) in recording.operations.iter().enumerate() {
            let cost = self.of(number);
            for output in one.outputs().filter(|_| cost.view) {
                bytes[output] = cost.output_bytes;
            }
        }
        let (entries, views) = most_at_once(recording, program, &others, &bytes);
        let table =
            table_bytes(given, given + entries) + given as u64 * GIVEN_BYTES + lent * LENT_BYTES;
        Bytes(table + views + self.scratch_bytes)
    }

    /// Bytes that an operation takes while it runs: its outputs and temporary bytes.
    pub(crate) fn taken_by(&self, recording: &Recording, number: usize) -> Bytes {
        let made = self.output_bytes(recording, number);
        made.map(|(_, bytes)| bytes).sum::<Bytes>() + Bytes(self.of(number).temp_bytes)
    }

    /// The outputs of an operation and the bytes of each: its share of the bytes of all outputs.
    fn output_bytes(
        &self,
        recording: &Recording,
        number: usize,
    ) -> impl Iterator<Item = (usize, Bytes)> {
        let operation = recording.operations.get(number);
        let all = self.of(number).output_bytes as f64;
        let numbers = values(recording, operation).max(1) as f64;
        operation.outputs().map(move |output| {
            let share = recording.tensors.value_bytes(output) as f64 / numbers;
            (output, self.rounded((all * share).ceil() as u64))
        })
    }

    /// The graph for `rekindle_plan`; `fixed` bytes are held permanently.
    pub(crate) fn graph(&self, recording: &Recording, fixed: Bytes) -> Graph {
        let mut tensors: Vec<Tensor> = (0..recording.tensors.len())
            .map(|number| Tensor {
                bytes: Bytes(recording.tensors.value_bytes(number)),
                ..Tensor::default()
            })
            .collect();
        for given in recording.given() {
            tensors[given].given = true;
        }
        for output in recording.outputs() {
            tensors[output].output = true;
        }
        let mut last_ordered: Option<TensorId> = None;
        let id = |tensor: usize| TensorId(tensor as u32);
        let operations = recording.operations.iter().enumerate();
        let operations = operations.map(|(number, one)| {
            let cost = self.of(number);
            for (output, bytes) in self.output_bytes(recording, number) {
                let handed = u64::from(tensors[output].output) * HANDED_BYTES;
                tensors[output].bytes = bytes + Bytes(handed);
            }
            let mut inputs: Vec<TensorId> = one.inputs().map(id).collect();
            let mut outputs: Vec<TensorId> = one.outputs().map(id).collect();
            let ordered = one.kind.draws || one.kind.synchronises;
            if ordered {
                // A tensor of no bytes from each draw or mean over ranks to the next stands for the state of generator
                // and network, and keeps them in order.
                let state = TensorId(tensors.len() as u32);
                tensors.push(Tensor::default());
                inputs.extend(last_ordered.replace(state));
                outputs.push(state);
            }
            Operation {
                inputs,
                outputs,
                view: cost.view,
                in_place: cost.in_place,
                seconds: Seconds(cost.seconds),
                temp_bytes: Bytes(cost.temp_bytes),
                repeatable: !ordered && !chooses(&one.kind.name),
                stage: one.stage,
                backward: one.backward,
                ..Operation::default()
            }
        });
        let mut operations: Vec<Operation> = operations.collect();
        let turned = recording.turned();
        for (_, parameter) in recording.updated() {
            // A tensor of no bytes that shows that the update was made.
            let made = id(tensors.len());
            tensors.push(Tensor {
                output: true,
                ..Tensor::default()
            });
            let OptimizerCost {
                step_s, temp_bytes, ..
            } = self
                .updates
                .of(parameter.id, turned.contains(&parameter.tensor));
            operations.push(Operation {
                inputs: parameter.gradient.map(id).into_iter().collect(),
                outputs: vec![made],
                seconds: step_s + self.updates.moves_s(parameter.id).unwrap_or_default(),
                temp_bytes,
                repeatable: false,
                backward: true,
                updates: Some(id(parameter.tensor)),
                ..Operation::default()
            });
        }
        if let Some(state) = last_ordered {
            // Draws whose result is unused also advance the generator.
            tensors[state.0 as usize].output = true;
        }
        Graph {
            tensors,
            operations,
            fixed_bytes: fixed,
        }
    }
}

/// The most tensors besides `others` that a program has made and not yet freed at one time, and the most of `bytes` that
/// these have.
fn most_at_once(
    recording: &Recording,
    program: &Program,
    others: &HashSet<usize>,
    bytes: &[u64],
) -> (usize, u64) {
    let mut alive = vec![false; bytes.len()];
    let (mut now, mut most) = ((0, 0), (0, 0));
    for (step, operation) in program.operations().iter().enumerate() {
        if operation.index() < recording.operations.len() {
            // A tensor that is read and was not made was fetched from the host.
            let tensors = recording.operations.get(operation.index()).tensors();
            for tensor in tensors.filter(|one| !others.contains(one)) {
                if !mem::replace(&mut alive[tensor], true) {
                    now = (now.0 + 1, now.1 + bytes[tensor]);
                }
            }
        }
        most = (most.0.max(now.0), most.1.max(now.1));
        let freed = program.frees(step).iter().map(|one| one.index());
        for tensor in freed.filter(|&one| one < bytes.len()) {
            if mem::take(&mut alive[tensor]) {
                now = (now.0 - 1, now.1 - bytes[tensor]);
            }
        }
    }
    most
}

/// The most bytes of a hash table that grows from `first` entries to `last`: seven eighths of its places may be taken, and
/// while it grows it has its old places, too.
fn table_bytes(first: usize, last: usize) -> u64 {
    let places = |entries: usize| (entries * 8 / 7 + 1).next_power_of_two() as u64;
    let grows = places(first) < places(last);
    let before = if grows { places(last) / 2 } else { 0 };
    (places(last) + before) * ENTRY_BYTES
}

/// Bytes of the numbers of all outputs.
pub(super) fn values(recording: &Recording, operation: RecordedOperation) -> u64 {
    let outputs = operation.outputs();
    outputs
        .map(|output| recording.tensors.value_bytes(output))
        .sum()
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::{
        nn::{Linear, LinearConfig},
        tensor::{Device, Tensor},
    };

    use super::*;

    /// A driver takes as much for a tensor of a smaller batch as it does for any other.
    #[test]
    fn a_smaller_batch_is_rounded_to_the_same_unit() {
        let device = Device::flex().autodiff();
        let model = LinearConfig::new(512, 512).init(&device);
        let loss = |model: &Linear, input: Tensor<2>| model.forward(input).square().mean();
        let recording = |rows| {
            let batch = Tensor::<2>::empty([rows, 512], &device);
            let recorded = crate::record(&model, &batch, loss).expect("recorded");
            recorded.recorded.0
        };
        let (larger, smaller) = (recording(2048), recording(1536));
        let unit = 2 << 20;
        let costs = Costs {
            unit,
            ..Costs::estimated(&larger, false)
        };
        let costs = costs.of_smaller((&larger, &smaller), false);
        let graph = costs.expect("alike").graph(&smaller, Bytes::ZERO);
        let made = graph.operations.iter().flat_map(|one| &one.outputs);
        let bytes = made.map(|one| graph.tensors[one.index()].bytes.0);
        let large: Vec<u64> = bytes.filter(|&bytes| bytes >= unit).collect();
        // The products of 3 MiB.
        assert!(large.contains(&(2 * unit)), "{large:?}");
        assert!(large.iter().all(|bytes| bytes % unit == 0), "{large:?}");
    }
}
