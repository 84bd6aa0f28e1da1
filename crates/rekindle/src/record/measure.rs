//! What each operation of a recording costs: from shapes, and measured while a program of it runs.
//!
//! | figure | from shapes | measured |
//! |---|---|---|
//! | bytes of an output | its numbers | what more is in use after the operation, its inputs kept |
//! | temporary bytes | none, or as [`Kernels`] are known to take | the peak above what is in use after it |
//! | view | by name | an output of a reshape, transpose or the like that takes less than half its numbers |
//! | in place | no | an input that is read here for the last time, and the peak stays below half an output more |
//! | seconds | of a nominal machine | medians, made longer by what the whole program takes longer in one go |
//!
//! An operation that draws random numbers is measured as one that fills its output: measuring leaves the generator as it
//! is. Its time is that of filling.
//!
//! Equal operations on tensors that lie alike in memory are one group: all runs of a group count for each of them: the
//! least of their outputs, the median of their times, and the most of their temporary bytes. Costs are kept by group.

mod group;
mod probe;

use std::time::{Duration, Instant};

use burn::tensor::DispatchTensor;
use burn_ir::OperationIr;
use rekindle_plan::{
    Bytes, OptimizerCost, Seconds,
    graph::{Graph, Operation, Tensor, TensorId},
};

use super::{
    RecordError,
    bridge::Interpreter,
    host::Host,
    kernels::{Kernels, Taken},
    layout::Alike,
    operation::{may_be_view, nominal_seconds, without_draw},
    operations::Recorded,
    options::Planning,
    program::{Prepared, Run, Turn},
    recording::Recording,
    update::UpdateCosts,
};
use group::{Group, Look};
use probe::{Probe, slowdown};

/// The pass in which [threads are gathered](Meter::gather_threads), which takes longer.
const GATHERED_PASS: usize = 1;

/// Passes over the program: one warms up, the others count.
const LEAST_PASSES: usize = 2;
const MOST_PASSES: usize = 3;
/// A third pass is made where the first took less.
const WORTH_ANOTHER: Duration = Duration::from_secs(2);

/// Bytes of memory that each tensor takes besides its numbers, as long as nothing is measured.
const TENSOR_BYTES: u64 = 256;

/// Tensors are as large as a multiple of this, those of at least so many bytes.
const ALIGNED: u64 = 256;
const LARGE: u64 = 16 * 1024;

/// What one operation costs.
#[derive(Debug, Clone, PartialEq)]
struct Cost {
    /// All its outputs together.
    output_bytes: u64,
    temp_bytes: u64,
    seconds: f64,
    view: bool,
    in_place: Option<usize>,
}

/// What the operations of a recording cost.
pub(crate) struct Costs {
    /// Each operation's group.
    group: Vec<u32>,
    /// By group.
    costs: Vec<Cost>,
    /// By parameters that the step itself updates.
    updates: UpdateCosts,
    /// What threads took for good while they were held together: one that came too late may take it in a step.
    scratch_bytes: u64,
}

impl Costs {
    /// From shapes alone.
    pub(crate) fn from_shapes(recording: &Recording) -> Self {
        Self::of_groups(recording, Alike::new(recording))
    }

    /// From shapes, with what kernels are known to take.
    pub(super) fn of_kernels(recording: &Recording, kernels: Kernels) -> Self {
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

    fn of_groups(recording: &Recording, alike: Alike) -> Self {
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
    pub(super) fn with_updates(self, updates: UpdateCosts) -> Self {
        Self { updates, ..self }
    }

    /// Replaces what the updates of parameters take.
    pub(super) fn set_updates(&mut self, updates: &UpdateCosts) {
        self.updates = updates.clone();
    }

    /// Measured while `program` runs, once to warm up and then once or twice.
    pub(super) fn measured(
        recording: &Recording,
        program: &Prepared,
        start: impl Fn() -> Result<Box<dyn Interpreter>, RecordError>,
        planning: &Planning,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, RecordError> {
        let meter = &*planning.meter;
        let alike = Alike::new(recording);
        let storage = storage_bytes(recording);
        let mut groups: Vec<Group> = alike.first.iter().map(|_| Group::default()).collect();
        let probe = Probe { planning, meter };
        let started = Instant::now();
        let mut passes = LEAST_PASSES;
        let mut pass = 0;
        let mut scratch_bytes = 0;
        while pass < passes {
            let mut interpreter = start()?;
            let mut held: Vec<DispatchTensor> = Vec::new();
            let mut host = Host::default();
            for (place, turn) in program.turns(recording).enumerate() {
                let run = match turn {
                    Turn::Run(run) => run,
                    Turn::Update(update) => {
                        update.skip(interpreter.as_mut());
                        continue;
                    }
                    Turn::Move(one, ready) => {
                        one.run(interpreter.as_mut(), &mut host)?;
                        ready.hand_out(interpreter.as_mut(), &mut |_, tensor| held.push(tensor));
                        continue;
                    }
                };
                // Passes count alike, though a third may come.
                let steps = program.program().len();
                progress(pass.min(1) * steps + place, LEAST_PASSES * steps);
                let group = &mut groups[alike.group[run.number] as usize];
                // The first operation of a kind may free nothing that could be taken over, and a later one something.
                let over = may_be_taken_over(recording, run, &storage);
                let look = group.runs.len() < pass + 1;
                if look || !over.is_empty() && group.took_over.len() < pass + 1 {
                    // With its inputs kept: what more is in use is its outputs.
                    let mut keeping = || {
                        let operation = without_draw(run.keeping_inputs());
                        let reading = probe.measure(interpreter.as_mut(), operation);
                        for output in run.recorded.outputs() {
                            let output = recording.tensors.last_read(output);
                            interpreter.run(OperationIr::Drop(output));
                        }
                        reading
                    };
                    // Once with threads held together: each needs scratch of its own, and all may need it at once. Some
                    // keep theirs from then on, which is no output.
                    let together = (pass == GATHERED_PASS).then(|| {
                        meter.gather_threads(true);
                        let reading = keeping();
                        meter.gather_threads(false);
                        reading
                    });
                    let kept = keeping();
                    let mut temp_bytes = kept.temp_bytes();
                    if let Some(together) = together {
                        temp_bytes = temp_bytes.max(together.temp_bytes());
                        scratch_bytes +=
                            together.output_bytes().saturating_sub(kept.output_bytes());
                    }
                    let seen = look.then(|| Look {
                        output_bytes: kept.output_bytes(),
                        temp_bytes,
                    });
                    // Once with the first of those freed that could be taken over, so that it is known which one was.
                    let (first, others) = over.split_at(over.len().min(1));
                    let taken =
                        probe.measure(interpreter.as_mut(), without_draw(run.keeping(others)));
                    for &(_, other) in others {
                        interpreter.run(OperationIr::Drop(recording.tensors.last_read(other)));
                    }
                    let first = first.first().map(|&(place, _)| place);
                    group.note(pass, seen, &kept, &taken, first);
                } else {
                    probe.make_room(group.takes());
                    let seconds = probe.time(interpreter.as_mut(), without_draw(run.operation()));
                    group.seconds.push(seconds);
                }
                run.finish(interpreter.as_mut(), &mut |_, tensor| held.push(tensor));
            }
            pass += 1;
            if started.elapsed() < WORTH_ANOTHER {
                passes = MOST_PASSES;
            }
        }
        let firsts = alike.first.clone();
        let mut costs = Self {
            scratch_bytes,
            ..Self::of_groups(recording, alike)
        };
        for ((cost, group), first) in costs.costs.iter_mut().zip(&groups).zip(firsts) {
            // What did not run keeps what its shapes say.
            if !group.runs.is_empty() {
                let operation = recording.operations.get(first);
                *cost = group.cost(&operation.kind.name, values(recording, operation));
            }
        }
        let runs = LEAST_PASSES * program.program().len();
        let in_one_go = probe.pass(recording, program, &costs, &start)?;
        progress(runs, runs);
        let one_by_one = program.turns(recording).map(|turn| match turn {
            Turn::Run(run) => costs.of(run.number).seconds,
            Turn::Update(_) | Turn::Move(..) => 0.0,
        });
        costs.slow(slowdown(in_one_go, one_by_one.sum()));
        Ok(costs)
    }

    /// All times, so many times as long.
    fn slow(&mut self, factor: f64) {
        for cost in &mut self.costs {
            cost.seconds *= factor;
        }
    }

    fn of(&self, number: usize) -> &Cost {
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
fn values(recording: &Recording, operation: Recorded) -> u64 {
    let outputs = operation.outputs();
    outputs
        .map(|output| recording.tensors.value_bytes(output))
        .sum()
}

/// The inputs whose storage the first output may take over, by place and number: those that are freed here and large enough.
fn may_be_taken_over(recording: &Recording, run: Run, storage: &[u64]) -> Vec<(usize, usize)> {
    let numbers = values(recording, run.recorded);
    let inputs = run.recorded.inputs().enumerate();
    inputs
        .filter(|&(_, input)| run.takes(input) && storage[input] >= numbers)
        .collect()
}

/// Bytes of the storage of each tensor, at most: one that repeats another's numbers has only those.
fn storage_bytes(recording: &Recording) -> Vec<u64> {
    let tensors = 0..recording.tensors.len();
    let mut bytes: Vec<u64> = tensors
        .map(|one| recording.tensors.value_bytes(one))
        .collect();
    let views = recording.operations.iter();
    for view in views.filter(|one| may_be_view(&one.kind.name)) {
        if let Some(viewed) = view.inputs().next() {
            for output in view.outputs() {
                bytes[output] = bytes[output].min(bytes[viewed]);
            }
        }
    }
    bytes
}
