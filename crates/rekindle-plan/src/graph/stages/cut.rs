//! From borders to a chain: the operations of each stage, the held storages, and the costs of each stage.
//!
//! Everything is counted by storage, under the tensor for which the storage was made (its *base*). The table in
//! `stages.rs` defines what is counted where. Cost: O(stages) times O(operations and their tensors).

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::super::borders::{Border, forward_operations};
use super::super::index::Index;
use super::super::{Graph, OperationId, TensorId};
use super::{Crossing, Stages, stage_of};
use crate::bytes::Bytes;
use crate::chain::{Chain, LossCost, OptimizerCost, Stage};
use crate::seconds::Seconds;

impl Stages {
    /// Cuts a valid graph at borders; without borders, the whole forward pass is one stage.
    pub fn new(graph: &Graph, borders: &[Border], crossing: Crossing) -> Stages {
        Cut::new(graph, &Index::new(graph), borders, crossing).stages()
    }
}

/// One storage: where it is made and read.
#[derive(Clone, Copy)]
struct Span {
    bytes: u64,
    /// The index of the operation that makes it; `None` for given ones.
    made: Option<usize>,
    /// The index of its last reader, and of its last reader in the forward pass; its maker's index if there is none.
    last_read: usize,
    last_forward_read: usize,
    output: bool,
    held: bool,
    /// Whether an update reads it: then it is kept until its stage's backward pass is done.
    updating: bool,
}

/// A forward pass cut at borders.
struct Cut<'a> {
    graph: &'a Graph,
    index: &'a Index,
    /// By base tensor.
    spans: Vec<Span>,
    /// By border, from 1; empty at 0 and after the loss.
    live: Vec<Vec<TensorId>>,
    forward: Vec<Range<usize>>,
    backward: Vec<Range<usize>>,
    once: Vec<bool>,
}

impl<'a> Cut<'a> {
    fn new(graph: &'a Graph, index: &'a Index, borders: &[Border], crossing: Crossing) -> Cut<'a> {
        let operations = forward_operations(graph);
        let mut edges = vec![0];
        edges.extend(borders.iter().map(|border| border.operations));
        if borders.is_empty() {
            edges.push(operations);
        }
        edges.push(operations);
        let forward: Vec<Range<usize>> = edges.windows(2).map(|pair| pair[0]..pair[1]).collect();
        let mut live = vec![Vec::new()];
        live.extend(borders.iter().map(|border| border.live.clone()));
        live.resize(forward.len() + 1, Vec::new());
        let mut cut = Cut {
            graph,
            index,
            spans: spans(graph, index),
            backward: backward(graph, index, &forward, &live),
            live,
            forward,
            once: vec![false; graph.operations.len()],
        };
        cut.hold(crossing);
        cut
    }

    /// Determines the held storages and the operations that run once.
    fn hold(&mut self, crossing: Crossing) {
        let operations = self.graph.operations[..self.loss_end()].iter();
        for (place, operation) in operations.enumerate() {
            self.once[place] = !operation.repeatable || self.shrinks_draws(place);
        }
        let operations = self.graph.operations.len();
        let stage_of = stage_of(&self.forward, &self.backward, operations);
        let loss = self.forward.len() - 1;
        let mut crossed = vec![0; self.spans.len()];
        for base in self.live.iter().flatten() {
            crossed[base.index()] += 1;
        }
        for base in self.graph.tensor_ids() {
            let span = self.spans[base.index()];
            let Some(made) = span.made.filter(|&made| made < self.loss_end()) else {
                continue;
            };
            let stage = stage_of[made];
            let listed = |border: usize| self.live[border].contains(&base);
            let used_elsewhere = || {
                let family = self.family_readers(base);
                family.into_iter().any(|reader| {
                    let reading = stage_of[reader];
                    let backward = reader >= self.loss_end();
                    reading != stage
                        && !(listed(reading) || backward && reading < loss && listed(reading + 1))
                })
            };
            let drawn = self.once[made] && self.read_again(base);
            let skips = crossing == Crossing::Held && crossed[base.index()] > 1;
            self.spans[base.index()].held = span.output || drawn || skips || used_elsewhere();
        }
        for (place, operation) in self.graph.operations[..self.loss_end()].iter().enumerate() {
            let bases = operation
                .outputs
                .iter()
                .map(|&t| self.index.root(t).index());
            // A held output would be made twice if another output of its operation were not held.
            if bases.clone().any(|base| self.spans[base].held) {
                bases.for_each(|base| self.spans[base].held = true);
                self.once[place] = true;
            }
        }
        for border in &mut self.live {
            border.retain(|base| !self.spans[base.index()].held);
        }
    }

    /// Where the forward pass ends.
    fn loss_end(&self) -> usize {
        self.forward.last().map_or(0, |range| range.end)
    }

    /// Whether an operation makes an output from random draws alone that is no larger than the draws, like a mask: then
    /// the output is kept instead.
    fn shrinks_draws(&self, place: usize) -> bool {
        let operation = &self.graph.operations[place];
        let bytes = |tensors: &[TensorId]| -> Bytes {
            tensors.iter().map(|&t| self.graph.tensor(t).bytes).sum()
        };
        let made_once = |t: &TensorId| match self.index.maker(*t) {
            None => true,
            Some(maker) => self.once[maker.index()],
        };
        let drawn = |t: &TensorId| self.index.maker(*t).is_some();
        operation.inputs.iter().all(made_once)
            && operation.inputs.iter().any(drawn)
            && bytes(&operation.outputs) <= bytes(&operation.inputs)
    }

    /// The indices of operations that read a storage, also through views.
    fn family_readers(&self, base: TensorId) -> Vec<usize> {
        let mut open = vec![base];
        let mut readers = Vec::new();
        while let Some(tensor) = open.pop() {
            for reader in self.index.readers(tensor) {
                readers.push(reader.index());
                let operation = self.graph.operation(*reader);
                if operation.view && operation.inputs[0] == tensor {
                    open.extend(&operation.outputs);
                }
            }
        }
        readers
    }

    /// Whether the backward pass, or an operation that may run again, reads a storage.
    fn read_again(&self, base: TensorId) -> bool {
        let readers = self.family_readers(base);
        readers
            .into_iter()
            .any(|reader| reader >= self.loss_end() || !self.once[reader])
    }

    /// The costs of each stage.
    fn stages(self) -> Stages {
        let loss = self.forward.len() - 1;
        let x: Vec<u64> = self.live.iter().map(|live| self.bytes(live)).collect();
        let mut fixed = self.graph.fixed_bytes;
        let held = self.spans.iter().filter(|span| span.held);
        fixed += held.map(|span| Bytes(span.bytes)).sum();
        let excess = (0..loss).map(|i| self.gradients_before(i).saturating_sub(x[i + 1]));
        fixed += Bytes(excess.max().unwrap_or(0));
        // A chain cannot express parameter gradients of the loss's own operations.
        fixed += Bytes(self.outputs_of(&self.backward[loss]));
        let stages = (0..loss).map(|i| self.stage(i, &x)).collect();
        let (forward, backward) = (&self.forward[loss], &self.backward[loss]);
        let last = if loss == 0 { 0 } else { x[loss] };
        let both = forward.clone().chain(backward.clone());
        let peak = self.peak(forward.clone(), |span| span.last_read >= forward.end);
        let (backward_s, peak_of_both) = self.backward_cost(backward, both);
        let loss = LossCost {
            forward_s: self.seconds(forward),
            backward_s,
            forward_temp_bytes: Bytes(peak),
            backward_temp_bytes: Bytes(peak_of_both.saturating_sub(last)),
        };
        Stages {
            chain: Chain {
                input_bytes: Bytes::ZERO,
                input_grad: false,
                fixed_bytes: fixed,
                stages,
                loss,
                optimizer: OptimizerCost::default(),
            },
            forward: self.forward,
            backward: self.backward,
            once: self.once,
        }
    }

    fn stage(&self, i: usize, x: &[u64]) -> Stage {
        let (forward, backward) = (&self.forward[i], &self.backward[i]);
        let leaves = |span: &Span| span.last_forward_read >= forward.end;
        let saves = |span: &Span| leaves(span) || span.last_read >= self.loss_end();
        let made_here = |span: &&Span| span.made.is_some_and(|made| forward.contains(&made));
        let own = self.spans.iter().filter(made_here);
        let saved = own.filter(|span| !span.held && saves(span));
        let saved = saved.map(|span| span.bytes).sum::<u64>().max(x[i + 1]);
        let grad = self.outputs_of(backward);
        let (backward_s, made) = self.backward_cost(backward, backward.clone());
        Stage {
            name: i.to_string(),
            forward_s: self.seconds(forward),
            backward_s,
            output_bytes: Bytes(x[i + 1]),
            saved_bytes: Bytes(saved),
            forward_temp_bytes: Bytes(self.peak(forward.clone(), leaves).saturating_sub(x[i + 1])),
            tracked_temp_bytes: Bytes(self.peak(forward.clone(), saves).saturating_sub(saved)),
            backward_temp_bytes: Bytes(made.saturating_sub(x[i] + grad)),
            param_bytes: Bytes::ZERO,
            grad_bytes: Bytes(grad),
        }
    }

    fn seconds(&self, range: &Range<usize>) -> Seconds {
        self.graph.operations[range.clone()]
            .iter()
            .map(|operation| operation.seconds)
            .sum()
    }

    /// The seconds of some backward operations, and the peak of the bytes made by `places`, which end with them; both with
    /// the updates that read their outputs.
    fn backward_cost(
        &self,
        range: &Range<usize>,
        places: impl Iterator<Item = usize> + Clone,
    ) -> (Seconds, u64) {
        let updates = self.graph.operations[self.graph.recorded_operations()..].iter();
        let made = |input: &TensorId| {
            let maker = self.index.maker(*input).map(OperationId::index);
            maker.is_some_and(|maker| range.contains(&maker))
        };
        let here = updates.filter(|update| update.inputs.iter().any(made));
        let most = here.clone().map(|update| update.temp_bytes.0).max();
        let seconds: Seconds = here.map(|update| update.seconds).sum();
        let stays = |span: &Span| span.output || span.updating || span.last_read >= range.end;
        let peak = most.unwrap_or_default() + self.peak(places, stays);
        (self.seconds(range) + seconds, peak)
    }

    fn bytes(&self, bases: &[TensorId]) -> u64 {
        bases.iter().map(|t| self.spans[t.index()].bytes).sum()
    }

    /// Bytes that the backward pass has made before stage i's backward starts, and reads later.
    fn gradients_before(&self, i: usize) -> u64 {
        let start = self.backward[i].start;
        let waits = |span: &&Span| {
            let made = span.made.is_some_and(|m| m >= self.loss_end() && m < start);
            made && !span.output && span.last_read >= start
        };
        self.spans.iter().filter(waits).map(|s| s.bytes).sum()
    }

    /// Bytes of the graph's outputs that some backward operations make.
    fn outputs_of(&self, range: &Range<usize>) -> u64 {
        let made = |span: &&Span| span.output && span.made.is_some_and(|m| range.contains(&m));
        self.spans.iter().filter(made).map(|s| s.bytes).sum()
    }

    /// Peak bytes of the outputs of some operations, without held storages. `stays` determines which outputs remain
    /// afterwards.
    fn peak(
        &self,
        places: impl Iterator<Item = usize> + Clone,
        stays: impl Fn(&Span) -> bool,
    ) -> u64 {
        let mut last_here = HashMap::new();
        for place in places.clone() {
            let operation = &self.graph.operations[place];
            for &tensor in operation.inputs.iter().chain(&operation.outputs) {
                last_here.insert(self.index.root(tensor), place);
            }
        }
        let mut made_here = HashSet::new();
        let (mut resident, mut peak) = (0, 0);
        for place in places {
            let operation = &self.graph.operations[place];
            let mut touched: Vec<TensorId> = operation
                .inputs
                .iter()
                .map(|&t| self.index.root(t))
                .collect();
            for &output in operation.outputs.iter().filter(|_| !operation.view) {
                if !self.spans[output.index()].held && made_here.insert(output) {
                    resident += self.spans[output.index()].bytes;
                    touched.push(output);
                }
            }
            peak = peak.max(resident + operation.temp_bytes.0);
            for base in touched {
                let span = &self.spans[base.index()];
                if last_here[&base] == place && !stays(span) && made_here.remove(&base) {
                    resident -= span.bytes;
                }
            }
        }
        peak
    }
}

fn spans(graph: &Graph, index: &Index) -> Vec<Span> {
    let forward = forward_operations(graph);
    let mut spans: Vec<Span> = graph
        .tensor_ids()
        .map(|tensor| {
            let made = index.maker(tensor).map(OperationId::index);
            Span {
                bytes: graph.tensor(tensor).bytes.0,
                made: made.filter(|_| index.root(tensor) == tensor),
                last_read: made.unwrap_or(0),
                last_forward_read: made.unwrap_or(0),
                output: false,
                held: false,
                updating: false,
            }
        })
        .collect();
    let (recorded, updates) = graph.operations.split_at(graph.recorded_operations());
    for (place, operation) in recorded.iter().enumerate() {
        for &input in &operation.inputs {
            let span = &mut spans[index.root(input).index()];
            span.last_read = place;
            if place < forward {
                span.last_forward_read = place;
            }
        }
    }
    for gradient in updates.iter().flat_map(|update| &update.inputs) {
        spans[index.root(*gradient).index()].updating = true;
    }
    for tensor in graph.tensor_ids() {
        spans[index.root(tensor).index()].output |= graph.tensor(tensor).output;
    }
    spans
}

/// Whether a backward operation is independent of the gradients: it reads nothing that the backward pass makes, and
/// nothing reads its outputs. An example is running statistics, which a step returns at its end.
fn stands_apart(graph: &Graph, index: &Index, id: OperationId) -> bool {
    let operation = graph.operation(id);
    let from_backward = |tensor: &TensorId| {
        let maker = index.maker(*tensor);
        maker.is_some_and(|maker| graph.operation(maker).backward)
    };
    let read = |tensor: &TensorId| !index.readers(*tensor).is_empty();
    !operation.inputs.iter().any(from_backward) && !operation.outputs.iter().any(read)
}

/// The backward operations of each stage: they end with the last one that reads anything made in this or a later stage.
/// Independent operations belong to the first stage, which ends last.
fn backward(
    graph: &Graph,
    index: &Index,
    forward: &[Range<usize>],
    live: &[Vec<TensorId>],
) -> Vec<Range<usize>> {
    let first = forward.last().map_or(0, |range| range.end);
    let recorded = graph.recorded_operations();
    let mut end = first;
    let mut ranges = Vec::new();
    let mark = |range: &Range<usize>| {
        let mut operations = graph.operations[range.clone()].iter();
        operations.find_map(|operation| operation.stage)
    };
    for (i, range) in forward.iter().enumerate().rev() {
        let start = end;
        for operation in &graph.operations[range.clone()] {
            for &output in &operation.outputs {
                let mut readers = index.readers(output).iter().rev();
                let last = readers.find(|reader| !stands_apart(graph, index, **reader));
                if let Some(last) = last {
                    end = end.max(last.index() + 1).min(recorded);
                }
            }
        }
        // Extend to the marked operations, as long as nothing inside an earlier stage is read.
        let own_mark = mark(range);
        let inside_earlier = |tensor: &TensorId| {
            let base = index.root(*tensor);
            let made = index.maker(base).map(OperationId::index);
            made.is_some_and(|made| made < range.start) && !live[i].contains(&base)
        };
        let operations = graph.operations[..recorded].iter();
        for (place, operation) in operations.enumerate().skip(end) {
            if own_mark.is_none() || operation.inputs.iter().any(inside_earlier) {
                break;
            }
            if operation.stage >= own_mark {
                end = place + 1;
            }
        }
        if i == 0 {
            end = recorded;
        }
        ranges.push(start..end);
    }
    ranges.reverse();
    ranges
}
