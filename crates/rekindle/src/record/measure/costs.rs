//! The costs of a recording's operations, and the graph that is planned with them.

use rekindle_plan::{
    Bytes, OptimizerCost, Seconds,
    graph::{Graph, Operation, Tensor, TensorId},
};

use crate::record::{
    kernels::{Kernels, Taken},
    layout::Alike,
    operation::{may_be_view, nominal_seconds},
    operations::RecordedOperation,
    recording::Recording,
    update_costs::UpdateCosts,
};

/// Bytes of memory that each tensor takes besides its numbers, as long as nothing is measured.
const TENSOR_BYTES: u64 = 256;

/// Tensors are as large as a multiple of this, those of at least so many bytes.
pub(super) const ALIGNED: u64 = 256;
pub(super) const LARGE: u64 = 16 * 1024;

/// What one operation costs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cost {
    /// All its outputs together.
    pub(super) output_bytes: u64,
    pub(super) temp_bytes: u64,
    pub(super) seconds: f64,
    pub(super) view: bool,
    pub(super) in_place: Option<usize>,
}

/// What the operations of a recording cost.
pub(crate) struct Costs {
    /// Each operation's group.
    pub(super) group: Vec<u32>,
    /// By group.
    pub(super) costs: Vec<Cost>,
    /// By parameters that the step itself updates.
    pub(super) updates: UpdateCosts,
    /// What threads took for good while they were held together: one that came too late may take it in a step.
    pub(super) scratch_bytes: u64,
}

impl Costs {
    /// From shapes alone.
    pub(crate) fn from_shapes(recording: &Recording) -> Self {
        Self::of_groups(recording, Alike::new(recording))
    }

    /// From shapes, with what kernels are known to take.
    pub(in crate::record) fn of_kernels(recording: &Recording, kernels: Kernels) -> Self {
        let alike = Alike::new(recording);
        let taken = kernels.taken(recording);
        let firsts = alike.first.clone();
        let mut costs = Self::of_groups(recording, alike);
        for (cost, first) in costs.costs.iter_mut().zip(firsts) {
            let Taken {
                temp_bytes,
                in_place,
                view,
            } = taken[first];
            let numbers = values(recording, recording.operations.get(first));
            *cost = Cost {
                output_bytes: if view { 0 } else { numbers } + TENSOR_BYTES,
                temp_bytes,
                view,
                in_place,
                ..*cost
            };
        }
        costs
    }

    pub(super) fn of_groups(recording: &Recording, alike: Alike) -> Self {
        let cost = |&first: &usize| {
            let operation = recording.operations.get(first);
            let kind = operation.kind;
            let view = may_be_view(&kind.name) && kind.name != "Slice";
            let numbers = values(recording, operation);
            Cost {
                output_bytes: if view { 0 } else { numbers } + TENSOR_BYTES,
                temp_bytes: 0,
                seconds: nominal_seconds(&kind.name, &kind.operation).0,
                view,
                in_place: None,
            }
        };
        Self {
            costs: alike.first.iter().map(cost).collect(),
            group: alike.group,
            updates: UpdateCosts::default(),
            scratch_bytes: 0,
        }
    }

    /// The same with what the updates of parameters take, where the step makes them.
    pub(in crate::record) fn with_updates(self, updates: UpdateCosts) -> Self {
        Self { updates, ..self }
    }

    /// Replaces what the updates of parameters take.
    pub(in crate::record) fn set_updates(&mut self, updates: &UpdateCosts) {
        self.updates = updates.clone();
    }

    /// All times, so many times as long.
    pub(super) fn slow(&mut self, factor: f64) {
        for cost in &mut self.costs {
            cost.seconds *= factor;
        }
    }

    pub(super) fn of(&self, number: usize) -> &Cost {
        &self.costs[self.group[number] as usize]
    }

    /// What is held beside tensors: what all views take themselves, besides the storage that they share, and scratch that
    /// threads may still take.
    pub(crate) fn beside_tensors(&self) -> Bytes {
        let costs = (0..self.group.len()).map(|number| self.of(number));
        let views = costs.filter(|cost| cost.view);
        let views: Bytes = views.map(|cost| Bytes(cost.output_bytes)).sum();
        views + Bytes(self.scratch_bytes)
    }

    /// What an operation takes while it runs: its outputs and temporary bytes.
    pub(crate) fn taken_by(&self, recording: &Recording, number: usize) -> Bytes {
        let made = self.output_bytes(recording, number);
        made.map(|(_, bytes)| bytes).sum::<Bytes>() + Bytes(self.of(number).temp_bytes)
    }

    /// The outputs of an operation with what each takes: their share of what all take together.
    fn output_bytes<'a>(
        &self,
        recording: &'a Recording,
        number: usize,
    ) -> impl Iterator<Item = (usize, Bytes)> + use<'a> {
        let operation = recording.operations.get(number);
        let all = self.of(number).output_bytes as f64;
        let numbers = values(recording, operation).max(1) as f64;
        operation.outputs().map(move |output| {
            let share = recording.tensors.value_bytes(output) as f64 / numbers;
            (output, rounded((all * share).ceil() as u64))
        })
    }

    /// What `rekindle_plan` plans with: `fixed` is resident all along.
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
                tensors[output].bytes = bytes;
            }
            let mut inputs: Vec<TensorId> = one.inputs().map(id).collect();
            let mut outputs: Vec<TensorId> = one.outputs().map(id).collect();
            let ordered = one.kind.draws || one.kind.synchronises;
            if ordered {
                // The state of generator and network, of no bytes, from each draw or mean over ranks to the next: they keep
                // their order.
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
                repeatable: !ordered,
                stage: one.stage,
                backward: one.backward,
                ..Operation::default()
            }
        });
        let mut operations: Vec<Operation> = operations.collect();
        let turned = recording.turned();
        for parameter in recording.updated() {
            // That it was made, of no bytes.
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
                seconds: step_s,
                temp_bytes,
                repeatable: false,
                backward: true,
                updates: Some(id(parameter.tensor)),
                ..Operation::default()
            });
        }
        if let Some(state) = last_ordered {
            // Draws that nothing needs move the generator too.
            tensors[state.0 as usize].output = true;
        }
        Graph {
            tensors,
            operations,
            fixed_bytes: fixed,
        }
    }
}

/// Headers differ by some bytes from operation to operation: tensors of one size count as equally large, so that one
/// may take the place of another.
fn rounded(bytes: u64) -> Bytes {
    Bytes(match bytes {
        ..LARGE => bytes,
        _ => bytes.next_multiple_of(ALIGNED),
    })
}

/// Bytes of the numbers of all outputs.
pub(super) fn values(recording: &Recording, operation: RecordedOperation) -> u64 {
    let outputs = operation.outputs();
    outputs
        .map(|output| recording.tensors.value_bytes(output))
        .sum()
}
