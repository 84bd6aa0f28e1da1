//! Computes the costs of a program step by step, in exact bytes.
//!
//! The peak of a step is the bytes held before it, plus the new storages of its outputs, plus its temporary bytes. A
//! view makes no storage, nor does an operation whose first output reuses the storage of an input
//! ([`Operation::in_place`](super::Operation::in_place)). After the step, dead tensors are released, and a storage is
//! freed with its last live tensor. Held bytes include [`Graph::fixed_bytes`]; host copies are counted separately.
//! Cost: O(steps and their tensors).

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::{Graph, Operation, Program, TensorId, Transfer};
use crate::bytes::Bytes;
use crate::seconds::Seconds;

/// What a program costs on its graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Simulated {
    /// The most bytes held at any moment, everything included.
    pub peak: Bytes,
    /// The first step that reaches the peak; 0 for an empty program.
    pub peak_step: usize,
    /// The time of all steps, one after the other. It is summed by operation, so that programs that only differ in their
    /// order are equally fast, bit for bit.
    pub time: Seconds,
    /// How many steps run an operation that has run before, transfers apart.
    pub repeated: usize,
    /// The most bytes that copies take on the host at any moment.
    pub host_peak: Bytes,
    /// Bytes that go to the host.
    pub offloaded: Bytes,
    /// Bytes that come back from it.
    pub fetched: Bytes,
    /// Of the time, that of transfers.
    pub transfer_time: Seconds,
    /// Held after each step, everything included.
    pub resident: Vec<Bytes>,
}

/// What the bytes of a moment are. serde names each part with its unit, as in `fixed_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Parts {
    /// What is held at every moment.
    #[serde(rename = "fixed_bytes")]
    pub fixed: Bytes,
    /// Tensors made in the forward pass.
    #[serde(rename = "activations_bytes")]
    pub activations: Bytes,
    /// Tensors of the forward pass that are made again in the backward pass.
    #[serde(rename = "graphs_bytes")]
    pub graphs: Bytes,
    /// Tensors of the backward pass: gradients of activations.
    #[serde(rename = "gradients_bytes")]
    pub gradients: Bytes,
    /// Outputs of the backward pass, and what updates read: gradients of parameters.
    #[serde(rename = "parameter_gradients_bytes")]
    pub parameter_gradients: Bytes,
    /// Temporary bytes of the operation itself.
    #[serde(rename = "temporary_bytes")]
    pub temporary: Bytes,
}

impl Parts {
    /// The sum of all parts.
    pub fn total(&self) -> Bytes {
        self.fixed
            + self.activations
            + self.graphs
            + self.gradients
            + self.parameter_gradients
            + self.temporary
    }
}

/// The memory of a step by parts.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// At its peak.
    pub at_peak: Parts,
    /// After it.
    pub after: Parts,
}

/// The part of the memory to which a storage belongs.
type Part = fn(&mut Parts) -> &mut Bytes;

#[derive(Clone, Copy)]
struct Storage {
    /// The tensor that it was made for.
    tensor: TensorId,
    /// Number of live tensors in it.
    live: usize,
    part: Part,
}

/// Where the live tensors are stored.
pub(super) struct Memory<'a> {
    graph: &'a Graph,
    /// The storage of each live tensor; none of given ones and their views, which are counted in the fixed bytes.
    of: Vec<Option<usize>>,
    storages: Vec<Storage>,
    on_host: Bytes,
    /// Held bytes by parts.
    parts: Parts,
    /// Whether the backward pass has begun.
    backward: bool,
    /// The tensors that updates read.
    updating: HashSet<TensorId>,
}

impl<'a> Memory<'a> {
    fn new(graph: &'a Graph) -> Memory<'a> {
        Memory {
            graph,
            of: vec![None; graph.tensors.len()],
            storages: Vec::with_capacity(graph.tensors.len()),
            on_host: Bytes::ZERO,
            parts: Parts {
                fixed: graph.fixed_bytes,
                ..Parts::default()
            },
            backward: false,
            updating: graph.operations[graph.updates()]
                .iter()
                .flat_map(|update| update.inputs.iter().copied())
                .collect(),
        }
    }

    /// The part to which an operation's output belongs now.
    fn part(&self, operation: &Operation, output: TensorId) -> Part {
        let of_parameter = self.graph.tensor(output).output || self.updating.contains(&output);
        match (operation.backward, self.backward) {
            (true, _) if of_parameter => |parts| &mut parts.parameter_gradients,
            (true, _) => |parts| &mut parts.gradients,
            (false, true) => |parts| &mut parts.graphs,
            (false, false) => |parts| &mut parts.activations,
        }
    }

    fn release(&mut self, tensor: TensorId) {
        if let Some(storage) = self.of[tensor.index()].take() {
            let storage = &mut self.storages[storage];
            storage.live -= 1;
            if storage.live == 0 {
                let tensor = self.graph.tensor(storage.tensor);
                self.on_host -= tensor.host_bytes;
                *(storage.part)(&mut self.parts) -= tensor.bytes;
            }
        }
    }

    /// The input whose storage the first output takes over, if the rules allow it.
    fn taken_over(&self, operation: &Operation, frees: &[TensorId]) -> Option<TensorId> {
        let input = *operation.inputs.get(operation.in_place?)?;
        let output = *operation.outputs.first()?;
        let Storage { tensor, live, .. } = self.storages[self.of[input.index()]?];
        let bytes = |tensor| self.graph.tensor(tensor).bytes;
        let once = operation.inputs.iter().filter(|&&t| t == input).count() == 1;
        let allowed = once && live == 1 && bytes(tensor) == bytes(output) && frees.contains(&input);
        allowed.then_some(input)
    }

    /// Each storage in use, with its tensor; given tensors and those of no bytes are left out.
    pub(super) fn held(&self) -> impl Iterator<Item = (usize, TensorId)> {
        let storages = self.storages.iter().enumerate();
        let held = storages
            .filter(|(_, one)| one.live > 0 && !self.graph.tensor(one.tensor).bytes.is_zero());
        held.map(|(place, one)| (place, one.tensor))
    }

    fn run(&mut self, operation: &Operation, frees: &[TensorId]) {
        self.backward |= operation.backward && operation.transfer.is_none();
        if operation.view {
            let base = operation.inputs.first();
            if let Some(base) = base.and_then(|input| self.of[input.index()]) {
                for &output in &operation.outputs {
                    self.storages[base].live += 1;
                    self.of[output.index()] = Some(base);
                }
            }
            return;
        }
        if let Some(input) = self.taken_over(operation, frees) {
            self.release(input);
        }
        for &output in &operation.outputs {
            let part = self.part(operation, output);
            let tensor = self.graph.tensor(output);
            *part(&mut self.parts) += tensor.bytes;
            self.on_host += tensor.host_bytes;
            self.of[output.index()] = Some(self.storages.len());
            self.storages.push(Storage {
                tensor: output,
                live: 1,
                part,
            });
        }
    }
}

/// Runs a program on its graph.
///
/// # Panics
/// If the program was made for another graph.
pub fn simulate(graph: &Graph, program: &Program) -> Simulated {
    simulate_watched(graph, program, |_, _, _| {})
}

/// Like [`simulate`], and calls `watch` with the memory of each step, and with what is stored after it.
///
/// # Panics
/// If the program was made for another graph.
pub(super) fn simulate_watched(
    graph: &Graph,
    program: &Program,
    mut watch: impl FnMut(usize, Moment, &Memory<'_>),
) -> Simulated {
    let mut memory = Memory::new(graph);
    let mut runs = vec![0_u32; graph.operations.len()];
    let mut run = Simulated {
        peak: graph.fixed_bytes,
        resident: Vec::with_capacity(program.operations().len()),
        ..Simulated::default()
    };
    for (step, &id) in program.operations().iter().enumerate() {
        let operation = graph.operation(id);
        let frees = program.frees(step);
        memory.run(operation, frees);
        let at_peak = Parts {
            temporary: operation.temp_bytes,
            ..memory.parts
        };
        let peak = at_peak.total();
        run.host_peak = run.host_peak.max(memory.on_host);
        for &tensor in frees {
            memory.release(tensor);
        }
        if peak > run.peak {
            run.peak = peak;
            run.peak_step = step;
        }
        runs[id.index()] += 1;
        let after = memory.parts;
        run.resident.push(after.total());
        watch(step, Moment { at_peak, after }, &memory);
    }
    for (operation, runs) in graph.operations.iter().zip(runs) {
        let seconds = operation.seconds * f64::from(runs);
        run.time += seconds;
        let (moved, tensors) = match operation.transfer {
            None => {
                run.repeated += runs.saturating_sub(1) as usize;
                continue;
            }
            Some(Transfer::Offload) => (&mut run.offloaded, &operation.inputs),
            Some(Transfer::Fetch) => (&mut run.fetched, &operation.outputs),
        };
        let bytes: Bytes = tensors.iter().map(|one| graph.tensor(*one).bytes).sum();
        *moved += Bytes(bytes.0.saturating_mul(u64::from(runs)));
        run.transfer_time += seconds;
    }
    run
}
