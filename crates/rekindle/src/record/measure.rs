//! What each operation of a recording costs: from shapes, and measured while a program of it runs.
//!
//! | figure | from shapes | measured |
//! |---|---|---|
//! | bytes of an output | its numbers | what more is in use after the operation, its inputs kept |
//! | temporary bytes | none: a kernel's own are not known | the peak above what is in use after it |
//! | view | by name | an output of a reshape, transpose or the like that takes less than half its numbers |
//! | in place | no | an input that is read here for the last time, and the peak stays below half an output more |
//! | seconds | of a nominal machine | medians |
//!
//! An operation that draws random numbers is measured as one that fills its output: measuring leaves the generator as it
//! is. Its time is that of filling.
//!
//! Equal operations on equal tensors are one kind: all runs of a kind count for each of them: the median
//! of their outputs and times, and the most of their temporary bytes.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use burn::tensor::{Device, DispatchTensor};
use burn_ir::{OperationIr, TensorStatus};
use rekindle_plan::{
    Bytes, Seconds,
    graph::{Graph, Operation, Program, Tensor, TensorId},
};

use super::{
    RecordError,
    bridge::Interpreter,
    operation::{draws, may_be_view, name_of, nominal_seconds, without_draw},
    program::{keys, prepare},
    recording::Recording,
};
use crate::{
    meter::Meter,
    profile::measurement::{SCRATCH_MARGIN, wake_threads},
};

/// The pass in which [threads are gathered](Meter::gather_threads), which takes longer.
const GATHERED_PASS: usize = 1;

/// Passes over the program: one warms up, the others count.
const LEAST_PASSES: usize = 2;
const MOST_PASSES: usize = 3;
/// A third pass is made where the first took less.
const WORTH_ANOTHER: Duration = Duration::from_secs(2);

/// Bytes of memory that each tensor takes besides its numbers, as long as nothing is measured.
const TENSOR_BYTES: u64 = 256;

/// What one operation costs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cost {
    /// All its outputs together.
    output_bytes: u64,
    temp_bytes: u64,
    seconds: f64,
    view: bool,
    in_place: Option<usize>,
}

/// What the operations of a recording cost.
pub(crate) struct Costs(Vec<Cost>);

impl Costs {
    /// From shapes alone.
    pub(crate) fn from_shapes(recording: &Recording) -> Self {
        let cost = |operation: &OperationIr| {
            let name = name_of(operation);
            let view = may_be_view(&name) && name != "Slice";
            let numbers: u64 = values(recording, operation);
            Cost {
                output_bytes: if view { 0 } else { numbers } + TENSOR_BYTES,
                temp_bytes: 0,
                seconds: nominal_seconds(&name, operation).0,
                view,
                in_place: None,
            }
        };
        let operations = recording.operations.iter();
        Self(operations.map(|one| cost(&one.operation)).collect())
    }

    /// Measured while `program` runs, once to warm up and then once or twice.
    pub(super) fn measured(
        recording: &Recording,
        program: &Program,
        start: impl Fn() -> Result<Box<dyn Interpreter>, RecordError>,
        device: &Device,
        meter: &dyn Meter,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, RecordError> {
        let keys = keys(recording);
        let names: Vec<String> = recording
            .operations
            .iter()
            .map(|one| name_of(&one.operation))
            .collect();
        let prepared = prepare(recording, program);
        let mut kinds: HashMap<u64, Kind> = HashMap::new();
        let probe = Probe { device, meter };
        let started = Instant::now();
        let mut passes = LEAST_PASSES;
        let mut pass = 0;
        while pass < passes {
            let mut interpreter = start()?;
            let mut held: Vec<DispatchTensor> = Vec::new();
            for (place, step) in prepared.iter().enumerate() {
                // Passes count alike, though a third may come.
                progress(
                    pass.min(1) * prepared.len() + place,
                    LEAST_PASSES * prepared.len(),
                );
                let kind = kinds.entry(keys[step.number]).or_default();
                let look = kind.runs.len() < pass + 1;
                let operation = without_draw(&step.operation);
                if look {
                    // Once with its inputs kept: what more is in use is its outputs.
                    // Threads are held together: each needs scratch of its own, and all may need it at once.
                    meter.gather_threads(pass == GATHERED_PASS);
                    let keeping = without_draw(&step.keeping_inputs());
                    let kept = probe.measure(interpreter.as_mut(), keeping);
                    meter.gather_threads(false);
                    for output in step.operation.outputs() {
                        let mut output = output.clone();
                        output.status = TensorStatus::ReadWrite;
                        interpreter.run(OperationIr::Drop(output));
                    }
                    let taken = probe.measure(interpreter.as_mut(), operation);
                    let over = may_take_over(recording, &step.operation);
                    kind.note(pass, &kept, &taken, over);
                } else {
                    let seconds = probe.time(interpreter.as_mut(), operation);
                    kind.seconds.push(seconds);
                }
                step.finish(interpreter.as_mut(), &mut |_, tensor| held.push(tensor));
            }
            pass += 1;
            if started.elapsed() < WORTH_ANOTHER {
                passes = MOST_PASSES;
            }
        }
        progress(LEAST_PASSES * prepared.len(), LEAST_PASSES * prepared.len());
        let mut costs = Self::from_shapes(recording);
        for (number, cost) in costs.0.iter_mut().enumerate() {
            if let Some(kind) = kinds.get(&keys[number]) {
                let numbers = values(recording, &recording.operations[number].operation);
                *cost = kind.cost(&names[number], numbers);
            }
        }
        Ok(costs)
    }

    /// What all views take themselves, besides the storage that they share.
    pub(crate) fn view_bytes(&self) -> Bytes {
        let views = self.0.iter().filter(|cost| cost.view);
        views.map(|cost| Bytes(cost.output_bytes)).sum()
    }

    /// What `rekindle_plan` plans with: `fixed` is resident all along.
    pub(crate) fn graph(&self, recording: &Recording, fixed: Bytes) -> Graph {
        let mut tensors: Vec<Tensor> = (0..recording.tensors.len())
            .map(|number| Tensor {
                bytes: Bytes(recording.value_bytes(number)),
                given: false,
                output: false,
            })
            .collect();
        for given in recording.given() {
            tensors[given].given = true;
        }
        for output in recording.outputs() {
            tensors[output].output = true;
        }
        let mut last_draw: Option<TensorId> = None;
        let operations = recording.operations.iter().zip(&self.0).map(|(one, cost)| {
            let id = |tensor: &burn_ir::TensorIr| TensorId(tensor.id.value() as u32);
            let mut outputs: Vec<TensorId> = one.operation.outputs().map(id).collect();
            let numbers = values(recording, &one.operation).max(1);
            for output in &outputs {
                let place = output.0 as usize;
                let share = recording.value_bytes(place) as f64 / numbers as f64;
                tensors[place].bytes = rounded((cost.output_bytes as f64 * share).ceil() as u64);
            }
            let mut inputs: Vec<TensorId> = one.operation.inputs().map(id).collect();
            let draws = draws(&one.operation);
            if draws {
                // The generator's state, of no bytes, from each draw to the next: they keep their order.
                let state = TensorId(tensors.len() as u32);
                tensors.push(Tensor::default());
                inputs.extend(last_draw.replace(state));
                outputs.push(state);
            }
            Operation {
                inputs,
                outputs,
                view: cost.view,
                in_place: cost.in_place,
                seconds: Seconds(cost.seconds),
                temp_bytes: Bytes(cost.temp_bytes),
                repeatable: !draws,
                stage: one.stage,
                backward: one.backward,
            }
        });
        let operations: Vec<Operation> = operations.collect();
        if let Some(state) = last_draw {
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
    const ALIGNED: u64 = 256;
    const LARGE: u64 = 16 * 1024;
    Bytes(if bytes < LARGE {
        bytes
    } else {
        bytes.next_multiple_of(ALIGNED)
    })
}

/// Bytes of the numbers of all outputs.
fn values(recording: &Recording, operation: &OperationIr) -> u64 {
    let outputs = operation.outputs();
    outputs
        .map(|output| recording.value_bytes(output.id.value() as usize))
        .sum()
}

/// The input whose storage the first output may take over: the only one that is freed here and large enough.
fn may_take_over(recording: &Recording, operation: &OperationIr) -> Option<usize> {
    let numbers = values(recording, operation);
    let mut large = operation.inputs().enumerate().filter(|(_, input)| {
        input.status == TensorStatus::ReadWrite
            && recording.value_bytes(input.id.value() as usize) >= numbers
    });
    let (place, _) = large.next()?;
    large.next().is_none().then_some(place)
}

/// One run of an operation.
#[derive(Debug, Clone, Copy)]
struct Reading {
    seconds: f64,
    /// In use before and after, and at most while it ran.
    before: u64,
    after: u64,
    peak: u64,
}

/// Measures operations.
struct Probe<'a> {
    device: &'a Device,
    meter: &'a dyn Meter,
}

impl Probe<'_> {
    fn time(&self, interpreter: &mut dyn Interpreter, operation: OperationIr) -> f64 {
        let start = Instant::now();
        interpreter.run(operation);
        // A failure shows where values are read.
        let _ = self.device.sync();
        start.elapsed().as_secs_f64()
    }

    fn measure(&self, interpreter: &mut dyn Interpreter, operation: OperationIr) -> Reading {
        if self.meter.exact_sizes() {
            // Pools that serve exact sizes reserve at most what an operation takes at most, if they start empty.
            self.meter.trim();
        }
        wake_threads();
        self.meter.start_interval();
        let before = self.meter.read();
        let seconds = self.time(interpreter, operation);
        let after = self.meter.read();
        let reserved = after.reserved_bytes.unwrap_or_default();
        Reading {
            seconds,
            before: before.in_use_bytes.0,
            after: after.in_use_bytes.0,
            peak: after.peak_in_use_bytes.max(reserved).0,
        }
    }
}

/// What was seen of one kind of operation.
#[derive(Default)]
struct Kind {
    seconds: Vec<f64>,
    runs: Vec<Look>,
}

/// One look at its memory.
struct Look {
    output_bytes: u64,
    temp_bytes: u64,
    /// The input whose storage the run that could free it took over.
    took_over: Option<usize>,
}

impl Kind {
    fn note(&mut self, pass: usize, kept: &Reading, taken: &Reading, over: Option<usize>) {
        if pass == 0 {
            // Warming up: tables grow, kernels are compiled.
            self.seconds.clear();
        }
        let output_bytes = kept.after.saturating_sub(kept.before);
        self.seconds.push(taken.seconds);
        let took_over = over.filter(|_| taken.peak.saturating_sub(taken.before) < output_bytes / 2);
        self.runs.push(Look {
            output_bytes,
            temp_bytes: kept.peak.saturating_sub(kept.after.max(kept.before)),
            took_over,
        });
    }

    fn cost(&self, name: &str, numbers: u64) -> Cost {
        // The first look may be a warm-up's.
        let looks = &self.runs[self.runs.len().min(2) / 2..];
        // Now and then a table grows while one is looked at.
        let usual = |bytes: fn(&Look) -> u64| {
            let mut all: Vec<u64> = looks.iter().map(bytes).collect();
            all.sort_unstable();
            all.get(all.len() / 2).copied().unwrap_or_default()
        };
        let output_bytes = usual(|look| look.output_bytes);
        let temp_bytes = looks
            .iter()
            .map(|look| look.temp_bytes)
            .max()
            .unwrap_or_default();
        let view = may_be_view(name) && output_bytes < numbers / 2;
        let took_over = looks.first().and_then(|look| look.took_over);
        let always = looks.iter().all(|look| look.took_over == took_over);
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        Cost {
            output_bytes,
            temp_bytes: (temp_bytes as f64 * (1.0 + SCRATCH_MARGIN)) as u64,
            seconds: seconds.get(seconds.len() / 2).copied().unwrap_or_default(),
            view,
            in_place: took_over.filter(|_| always && !view),
        }
    }
}
