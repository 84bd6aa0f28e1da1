//! From borders to a chain: the operations of each stage, the held storages, and the costs of each stage.
//!
//! Everything is counted by storage, under the tensor for which the storage was made (its *base*). The table in
//! `stages.rs` defines what is counted where. Cost: O(stages) times O(operations and their tensors).

use std::ops::Range;

use super::super::borders::{Border, borders, forward_operations};
use super::super::{Graph, OperationId, Program, TensorId, simulate};
use super::{Crossing, Stages, ids, stage_of};
use crate::bytes::Bytes;
use crate::chain::{Chain, LossCost, OptimizerCost, Stage};
use crate::seconds::Seconds;

impl Stages {
    /// Cuts a valid graph at its borders (`borders.rs`); storages that cross several of them are carried.
    pub fn of_graph(graph: &Graph) -> Stages {
        Stages::new(graph, &borders(graph), Crossing::Carried)
    }

    /// Cuts a valid graph at borders; without borders, the whole forward pass is one stage.
    #[doc(hidden)]
    pub fn new(graph: &Graph, borders: &[Border], crossing: Crossing) -> Stages {
        Cut::new(graph, borders, crossing).stages()
    }
}

/// One storage: where it is made and read, as places in the list of operations.
#[derive(Clone)]
struct Span {
    bytes: Bytes,
    /// Where it is made; `None` for given ones.
    made: Option<usize>,
    /// Its readers, also through views, each once, in recorded order.
    readers: Vec<usize>,
    /// Its last reader, and its last reader in the forward pass; its maker if there is none.
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
    /// The base of each tensor.
    roots: Vec<TensorId>,
    /// The operation that makes each tensor; `None` for given ones.
    makers: Vec<Option<usize>>,
    /// The operations that read each tensor itself, in recorded order.
    readers: Vec<Vec<usize>>,
    /// By base tensor.
    spans: Vec<Span>,
    /// By border, from 1; empty at 0 and after the loss.
    live: Vec<Vec<TensorId>>,
    forward: Vec<Range<usize>>,
    backward: Vec<Range<usize>>,
    once: Vec<bool>,
}

impl<'a> Cut<'a> {
    fn new(graph: &'a Graph, borders: &[Border], crossing: Crossing) -> Cut<'a> {
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
        let mut makers = vec![None; graph.tensors.len()];
        let mut readers = vec![Vec::new(); graph.tensors.len()];
        for (place, operation) in graph.operations.iter().enumerate() {
            for output in &operation.outputs {
                makers[output.index()] = Some(place);
            }
            for input in &operation.inputs {
                add(&mut readers[input.index()], place);
            }
        }
        let roots = graph.roots();
        let mut cut = Cut {
            graph,
            spans: spans(graph, &roots, &makers),
            roots,
            makers,
            readers,
            live,
            forward,
            backward: Vec::new(),
            once: vec![false; graph.operations.len()],
        };
        cut.backward = cut.backward();
        cut.hold(crossing);
        cut
    }

    /// The base of a tensor.
    fn root(&self, tensor: TensorId) -> TensorId {
        self.roots[tensor.index()]
    }

    /// The operation that makes a tensor; `None` for a given one.
    fn maker(&self, tensor: TensorId) -> Option<usize> {
        self.makers[tensor.index()]
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
            let span = &self.spans[base.index()];
            let Some(made) = span.made.filter(|&made| made < self.loss_end()) else {
                continue;
            };
            let stage = stage_of[made];
            let listed = |border: usize| self.live[border].contains(&base);
            let used_elsewhere = || {
                span.readers.iter().any(|&reader| {
                    let reading = stage_of[reader];
                    let backward = reader >= self.loss_end();
                    reading != stage
                        && !(listed(reading) || backward && reading < loss && listed(reading + 1))
                })
            };
            // Whether the backward pass, or an operation that may run again, reads it.
            let again = |&reader: &usize| reader >= self.loss_end() || !self.once[reader];
            let drawn = self.once[made] && span.readers.iter().any(again);
            let skips = crossing == Crossing::Held && crossed[base.index()] > 1;
            self.spans[base.index()].held = span.output || drawn || skips || used_elsewhere();
        }
        for (place, operation) in self.graph.operations[..self.loss_end()].iter().enumerate() {
            let outputs = operation.outputs.iter();
            let bases = outputs.map(|&t| self.roots[t.index()].index());
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

    /// Whether an operation makes an output alone from what runs once, no larger than that, like a mask from random draws:
    /// then the output is kept instead.
    fn shrinks_draws(&self, place: usize) -> bool {
        let operation = &self.graph.operations[place];
        let bytes = |tensors: &[TensorId]| -> Bytes {
            tensors.iter().map(|&t| self.graph.tensor(t).bytes).sum()
        };
        let made_once = |t: &TensorId| self.maker(*t).is_some_and(|maker| self.once[maker]);
        !operation.inputs.is_empty()
            && operation.inputs.iter().all(made_once)
            && bytes(&operation.outputs) <= bytes(&operation.inputs)
    }

    /// The costs of each stage.
    fn stages(self) -> Stages {
        let loss = self.forward.len() - 1;
        let x: Vec<Bytes> = self.live.iter().map(|live| self.bytes(live)).collect();
        let held = self.spans.iter().filter(|span| span.held);
        let held: Bytes = held.map(|span| span.bytes).sum();
        let excess = (0..loss).map(|i| self.gradients_before(i) - x[i + 1]);
        let excess = excess.max().unwrap_or_default();
        // A chain cannot express parameter gradients of the loss's own operations.
        let gradients = self.outputs_of(&self.backward[loss]);
        let alone = self.alone();
        let stages = (0..loss).map(|i| self.stage(&alone, i, &x)).collect();
        let (forward, backward) = (&self.forward[loss], &self.backward[loss]);
        let both = forward.start..backward.end;
        let (backward_s, peak_of_both) = self.backward_cost(&alone, backward, both);
        let loss = LossCost {
            forward_s: self.seconds(forward),
            backward_s,
            forward_temp_bytes: self.peak(&alone, forward.clone(), |span| {
                span.last_read >= forward.end
            }),
            backward_temp_bytes: peak_of_both - x[loss],
        };
        Stages {
            chain: Chain {
                input_bytes: Bytes::ZERO,
                input_grad: false,
                fixed_bytes: self.graph.fixed_bytes + held + excess + gradients,
                stages,
                loss,
                optimizer: OptimizerCost::default(),
            },
            forward: self.forward,
            backward: self.backward,
            once: self.once,
        }
    }

    fn stage(&self, alone: &Graph, i: usize, x: &[Bytes]) -> Stage {
        let (forward, backward) = (&self.forward[i], &self.backward[i]);
        let leaves = |span: &Span| span.last_forward_read >= forward.end;
        let saves = |span: &Span| leaves(span) || span.last_read >= self.loss_end();
        let saved = self.made_in(forward, |span| !span.held && saves(span));
        let saved = saved.max(x[i + 1]);
        let grad = self.outputs_of(backward);
        let (backward_s, made) = self.backward_cost(alone, backward, backward.clone());
        Stage {
            name: i.to_string(),
            forward_s: self.seconds(forward),
            backward_s,
            output_bytes: x[i + 1],
            saved_bytes: saved,
            forward_temp_bytes: self.peak(alone, forward.clone(), leaves) - x[i + 1],
            tracked_temp_bytes: self.peak(alone, forward.clone(), saves) - saved,
            backward_temp_bytes: made - (x[i] + grad),
            param_bytes: Bytes::ZERO,
            grad_bytes: grad,
        }
    }

    fn seconds(&self, range: &Range<usize>) -> Seconds {
        let operations = self.graph.operations[range.clone()].iter();
        operations.map(|operation| operation.seconds).sum()
    }

    /// The seconds of some backward operations, and the peak of the bytes made by `places`, which end with them; both with
    /// the updates that read their outputs.
    fn backward_cost(
        &self,
        alone: &Graph,
        range: &Range<usize>,
        places: Range<usize>,
    ) -> (Seconds, Bytes) {
        let updates = self.graph.operations[self.graph.recorded_operations()..].iter();
        let made = |input: &TensorId| self.maker(*input).is_some_and(|m| range.contains(&m));
        let here = updates.filter(|update| update.inputs.iter().any(made));
        let most = here.clone().map(|update| update.temp_bytes).max();
        let seconds: Seconds = here.map(|update| update.seconds).sum();
        let stays = |span: &Span| span.output || span.updating || span.last_read >= range.end;
        let peak = most.unwrap_or_default() + self.peak(alone, places, stays);
        (self.seconds(range) + seconds, peak)
    }

    fn bytes(&self, bases: &[TensorId]) -> Bytes {
        bases.iter().map(|t| self.spans[t.index()].bytes).sum()
    }

    /// Bytes of the storages that some operations make, where a condition holds.
    fn made_in(&self, range: &Range<usize>, counts: impl Fn(&Span) -> bool) -> Bytes {
        let made = |span: &&Span| span.made.is_some_and(|m| range.contains(&m)) && counts(span);
        self.spans.iter().filter(made).map(|s| s.bytes).sum()
    }

    /// Bytes that the backward pass has made before stage i's backward starts, and reads later.
    fn gradients_before(&self, i: usize) -> Bytes {
        let start = self.backward[i].start;
        let waits = |span: &Span| !span.output && span.last_read >= start;
        self.made_in(&(self.loss_end()..start), waits)
    }

    /// Bytes of the graph's outputs that some backward operations make.
    fn outputs_of(&self, range: &Range<usize>) -> Bytes {
        self.made_in(range, |span| span.output)
    }

    /// The graph in which only what is made and not held takes bytes, and nothing is reused in place: the rest of the step
    /// may still read it.
    fn alone(&self) -> Graph {
        let mut alone = self.graph.clone();
        alone.fixed_bytes = Bytes::ZERO;
        for (tensor, span) in alone.tensors.iter_mut().zip(&self.spans) {
            if span.held {
                tensor.bytes = Bytes::ZERO;
            }
        }
        for operation in &mut alone.operations {
            operation.in_place = None;
        }
        alone
    }

    /// Peak bytes of the outputs of some operations. `stays` determines which outputs remain afterwards.
    fn peak(&self, alone: &Graph, range: Range<usize>, stays: impl Fn(&Span) -> bool) -> Bytes {
        let stays = self
            .roots
            .iter()
            .map(|root| stays(&self.spans[root.index()]));
        let operations: Vec<OperationId> = ids(range).collect();
        let program = Program::with_frees(alone, &operations, true, stays.collect());
        simulate(alone, &program).peak
    }

    /// Whether a backward operation is independent of the gradients: it reads nothing that the backward pass makes, and
    /// nothing reads its outputs. An example is running statistics, which a step returns at its end.
    fn stands_apart(&self, place: usize) -> bool {
        let operation = &self.graph.operations[place];
        let from_backward = |tensor: &TensorId| {
            let maker = self.maker(*tensor);
            maker.is_some_and(|maker| self.graph.operations[maker].backward)
        };
        let read = |tensor: &TensorId| !self.readers[tensor.index()].is_empty();
        !operation.inputs.iter().any(from_backward) && !operation.outputs.iter().any(read)
    }

    /// The backward operations of each stage: they end with the last one that reads anything made in this or a later stage.
    /// Independent operations belong to the first stage, which ends last.
    fn backward(&self) -> Vec<Range<usize>> {
        let recorded = self.graph.recorded_operations();
        let mut end = self.loss_end();
        let mut ranges = Vec::new();
        for (i, range) in self.forward.iter().enumerate().rev() {
            let start = end;
            let operations = &self.graph.operations[range.clone()];
            for output in operations.iter().flat_map(|operation| &operation.outputs) {
                let mut readers = self.readers[output.index()].iter().rev();
                if let Some(last) = readers.find(|reader| !self.stands_apart(**reader)) {
                    end = end.max(last + 1).min(recorded);
                }
            }
            // Extend to the marked operations, as long as nothing inside an earlier stage is read.
            let own_mark = operations.iter().find_map(|operation| operation.stage);
            let inside_earlier = |tensor: &TensorId| {
                let base = self.root(*tensor);
                let made = self.maker(base);
                made.is_some_and(|made| made < range.start) && !self.live[i].contains(&base)
            };
            let later = self.graph.operations[..recorded].iter().enumerate();
            for (place, operation) in later.skip(end) {
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
}

/// Adds a place to a rising list that may end with it.
fn add(places: &mut Vec<usize>, place: usize) {
    if places.last() != Some(&place) {
        places.push(place);
    }
}

fn spans(graph: &Graph, roots: &[TensorId], makers: &[Option<usize>]) -> Vec<Span> {
    let tensors = graph.tensors.iter().zip(graph.tensor_ids());
    let spans = tensors.map(|(tensor, id)| Span {
        bytes: tensor.bytes,
        made: makers[id.index()].filter(|_| roots[id.index()] == id),
        readers: Vec::new(),
        last_read: makers[id.index()].unwrap_or(0),
        last_forward_read: makers[id.index()].unwrap_or(0),
        output: false,
        held: false,
        updating: false,
    });
    let mut spans: Vec<Span> = spans.collect();
    for (place, operation) in graph.operations.iter().enumerate() {
        for input in &operation.inputs {
            let span = &mut spans[roots[input.index()].index()];
            add(&mut span.readers, place);
            if operation.updates.is_some() {
                span.updating = true;
                continue;
            }
            span.last_read = place;
            if !operation.backward {
                span.last_forward_read = place;
            }
        }
    }
    for output in graph.outputs() {
        spans[roots[output.index()].index()].output = true;
    }
    spans
}
