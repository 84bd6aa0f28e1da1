//! The costs of a recording's operations: from shapes, and measured while a program of the recording runs.
//!
//! | figure | from shapes | measured |
//! |---|---|---|
//! | bytes of an output | its numbers | increase of bytes in use by the operation, with its inputs kept |
//! | temporary bytes | none, or from [`Kernels`](super::Kernels) | the peak above the bytes in use after it |
//! | view | by name | an output of a reshape, transpose or the like that takes less than half its numbers |
//! | in place | no | an input is read here for the last time, and the peak rises by less than half an output |
//! | seconds | of a nominal machine | medians, scaled to the time of the whole program in one pass |
//!
//! `costs.rs` keeps them, `group.rs` measures operations alike as one, `probe.rs` measures.
//!
//! An operation that draws random numbers is replaced by one that fills its output, so that measuring does not change
//! the generator. Its time is the time of filling.
//!
//! Equal operations on tensors with the same memory layout form a group. All runs of a group count for each of its
//! operations: the minimum of their output bytes, the median of their times, and the maximum of their temporary bytes.
//! Costs are stored by group.

mod costs;
mod group;
mod probe;

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use burn_ir::OperationIr;

use super::{
    RecordError,
    bridge::Interpreter,
    host::Host,
    operation::{may_be_view, without_draw},
    options::Planning,
    program::{Prepared, Run, Turn},
    recording::Recording,
};
pub(crate) use costs::Costs;
pub(super) use costs::Known;
use costs::values;
use group::{Group, Look, median};
use probe::{WORTH_ANOTHER, relative_time};

/// The pass in which [threads are gathered](Meter::gather_threads), which takes longer.
const GATHERED_PASS: usize = 1;

/// Passes over the program: one for warm-up, the others count.
const LEAST_PASSES: usize = 2;
const MOST_PASSES: usize = 3;

/// Margin of estimated temporary bytes: threads do not all reach their highest point at the same time.
const SCRATCH_MARGIN: f64 = 1.0 / 16.0;

/// What threads of this process [keep](Costs::kept), at most, of what was measured: what of it they need is in use.
static KEPT: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

impl Costs {
    /// Measures operations while `program` runs, once to warm up and then once or twice, except those that are known.
    /// Stops before an operation that by these costs, which are estimates, exceeds the budget: what did not run keeps its
    /// estimate.
    pub(super) fn measured(
        mut self,
        recording: &Recording,
        program: &Prepared,
        start: impl Fn() -> Result<Box<dyn Interpreter>, RecordError>,
        (planning, known): (&Planning, &Known),
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, RecordError> {
        let is_known = self.set_known(known);
        if !is_known.contains(&false) {
            return Ok(self);
        }
        let meter = &*planning.meter;
        let storage = storage_bytes(recording);
        let mut groups: Vec<Group> = self.costs.iter().map(|_| Group::default()).collect();
        let has_room = |bytes| match planning.check_memory(bytes) {
            Err(RecordError::OverBudget { .. }) => Ok(false),
            checked => checked.map(|()| true),
        };
        let started = Instant::now();
        let mut passes = LEAST_PASSES;
        let mut pass = 0;
        let mut scratch_bytes = 0;
        'passes: while pass < passes {
            let mut interpreter = start()?;
            let mut held = Vec::new();
            let mut host = Host::default();
            for (place, (turn, ready)) in program.turns(recording).enumerate() {
                let run = match turn {
                    Turn::Run(run) => run,
                    Turn::Update(update) => {
                        update.skip(interpreter.as_mut());
                        continue;
                    }
                    Turn::Move(one) => {
                        one.run(interpreter.as_mut(), &mut host)?;
                        held.extend(ready.hand_out(interpreter.as_mut()));
                        continue;
                    }
                };
                // Progress counts two passes, although there may be a third.
                let steps = program.program.operations().len();
                progress(pass.min(1) * steps + place, LEAST_PASSES * steps);
                let number = self.alike.group[run.number] as usize;
                let group = &mut groups[number];
                // The first operation of a kind may free no reusable input, while a later one does.
                let over = may_be_taken_over(recording, run, &storage);
                let takes = |in_place| group.takes(self.of(run.number), in_place);
                let in_place = self.of(run.number).in_place.is_some() && !over.is_empty();
                if !has_room(takes(in_place))? {
                    break 'passes;
                }
                let look = group.runs.len() < pass + 1;
                let measures = look || !over.is_empty() && group.took_over.len() < pass + 1;
                if measures && !is_known[number] && has_room(takes(false))? {
                    // With inputs kept, the increase of bytes in use is the outputs.
                    let mut keeping = || {
                        let operation = without_draw(run.recorded.filled(|_| false));
                        let reading = planning.measure(interpreter.as_mut(), operation);
                        for output in run.recorded.outputs() {
                            let output = recording.tensors.last_read(output);
                            interpreter.run(OperationIr::Drop(output));
                        }
                        reading
                    };
                    // Once with gathered threads: each needs its own scratch memory, and all may need it at the same
                    // time. Some keep it from then on, which does not count as output.
                    let together = (pass == GATHERED_PASS).then(|| {
                        meter.gather_threads(true);
                        let reading = keeping();
                        meter.gather_threads(false);
                        reading
                    });
                    let alone = keeping();
                    let mut temp = alone.temp_bytes();
                    if let Some(together) = together {
                        temp = temp.max(together.temp_bytes());
                        scratch_bytes += together.kept().saturating_sub(alone.kept());
                    }
                    let seen = look.then(|| Look {
                        output_bytes: alone.kept(),
                        temp_bytes: temp,
                    });
                    // Once with only the first reusable input freed, so that it is known which one was reused.
                    let (first, others) = over.split_at(over.len().min(1));
                    let taken =
                        planning.measure(interpreter.as_mut(), without_draw(run.keeping(others)));
                    for &(_, other) in others {
                        interpreter.run(OperationIr::Drop(recording.tensors.last_read(other)));
                    }
                    let first = first.first().map(|&(place, _)| place);
                    group.note(pass, seen, &alone, &taken, first);
                } else {
                    planning.new_room().make(takes(in_place));
                    let seconds =
                        planning.time(interpreter.as_mut(), without_draw(run.operation()));
                    group.seconds.push(seconds);
                }
                kept_by_threads().insert(self.of(run.number).kept_bytes);
                run.finish(interpreter.as_mut());
                held.extend(ready.hand_out(interpreter.as_mut()));
            }
            pass += 1;
            if started.elapsed() < WORTH_ANOTHER {
                passes = MOST_PASSES;
            }
        }
        if planning.on_host {
            self.measuring_bytes = planning.in_use();
        }
        let groups = groups.iter().zip(&self.alike.first).zip(&is_known);
        for (cost, ((group, &first), is_known)) in self.costs.iter_mut().zip(groups) {
            if *is_known {
                continue;
            }
            if group.runs.is_empty() {
                // Did not run, or without room to keep its inputs.
                cost.temp_bytes += (cost.temp_bytes as f64 * SCRATCH_MARGIN).ceil() as u64;
                if !group.seconds.is_empty() {
                    cost.seconds = median(&group.seconds);
                }
                continue;
            }
            let operation = recording.operations.get(first);
            let numbers = values(recording, operation);
            *cost = group.cost(cost, &operation.kind.name, numbers, self.unit);
            // Clean-ups of the pools happen at different points in each step and split fused groups, so kernels for a
            // part may be tried in any step, with separate outputs.
            if planning.bounds_pools() && operation.kind.is_tried() {
                cost.temp_bytes = cost.temp_bytes.max(cost.output_bytes);
            }
        }
        if pass < LEAST_PASSES {
            self.scratch_bytes = self.kept().difference(&kept_by_threads()).sum();
            return Ok(self);
        }
        self.scratch_bytes = scratch_bytes.max(known.scratch_bytes);
        let runs = LEAST_PASSES * program.program.operations().len();
        let in_one_go = planning.time_pass(recording, program, &self, &start)?;
        progress(runs, runs);
        let [mut one_by_one, mut of_known] = [0.0; 2];
        for (turn, _) in program.turns(recording) {
            if let Turn::Run(run) = turn {
                let seconds = self.of(run.number).seconds;
                if is_known[self.alike.group[run.number] as usize] {
                    of_known += seconds;
                } else {
                    one_by_one += seconds;
                }
            }
        }
        let factor = relative_time(in_one_go - of_known, one_by_one);
        for (cost, is_known) in self.costs.iter_mut().zip(is_known) {
            if !is_known {
                cost.seconds *= factor;
            }
        }
        Ok(self)
    }

    /// Sets the costs that are known, and returns which groups' are.
    fn set_known(&mut self, known: &Known) -> Vec<bool> {
        for (key, cost) in self.alike.keys.iter().zip(&mut self.costs) {
            if let Some(measured) = known.costs.get(key) {
                cost.clone_from(measured);
            }
        }
        let is_known: Vec<bool> = self.costs.iter().map(|cost| cost.measured).collect();
        if !is_known.contains(&false) {
            self.scratch_bytes = known.scratch_bytes;
        }
        is_known
    }
}

fn kept_by_threads() -> MutexGuard<'static, BTreeSet<u64>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The inputs whose storage the first output may reuse, by place and number: those that are freed here and large
/// enough.
fn may_be_taken_over(recording: &Recording, run: Run, storage: &[u64]) -> Vec<(usize, usize)> {
    let numbers = values(recording, run.recorded);
    let inputs = run.recorded.inputs().enumerate();
    inputs
        .filter(|&(_, input)| run.takes(input) && storage[input] >= numbers)
        .collect()
}

/// Upper bound on the storage of each tensor: a tensor that repeats another's numbers has only that storage.
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
