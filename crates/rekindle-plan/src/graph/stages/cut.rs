//! From borders to a chain: the operations of each stage, the held storages, and the costs of each stage.
//!
//! Everything is counted by storage. The table in `stages.rs` defines what is counted where. Cost: O(stages) times
//! O(operations and their tensors).

use std::{collections::HashSet, ops::Range};

use super::super::borders::{Border, borders, forward_operations};
use super::super::storages::{Storage, storages, sums};
use super::super::{Graph, TensorId};
use super::Stages;
use crate::bytes::Bytes;
use crate::chain::{Chain, LossCost, Stage};
use crate::seconds::Seconds;

impl Stages {
    /// Cuts a valid graph at its borders (`borders.rs`); storages that cross several of them are carried.
    pub fn of_graph(graph: &Graph) -> Stages {
        Stages::new(graph, &borders(graph, false), usize::MAX)
    }

    /// Cuts a valid graph at borders; without borders, the whole forward pass is one stage. Storages that cross more borders
    /// than `most_crossed` are held.
    #[doc(hidden)]
    pub fn new(graph: &Graph, borders: &[Border], most_crossed: usize) -> Stages {
        let end = forward_operations(graph);
        let mut edges = vec![0];
        edges.extend(borders.iter().map(|border| border.operations));
        if borders.is_empty() {
            edges.push(end);
        }
        edges.push(end);
        let roots = graph.roots();
        let mut cut = Cut {
            graph,
            storages: storages(graph, &roots),
            roots,
            end,
            stages: Stages {
                chain: Chain::default(),
                forward: edges.windows(2).map(|pair| pair[0]..pair[1]).collect(),
                backward: Vec::new(),
                once: vec![false; graph.operations.len()],
            },
            edges,
        };
        cut.stages.backward = cut.backward();
        let held = cut.hold(most_crossed);
        cut.stages.chain = cut.chain(held);
        cut.stages
    }
}

/// A forward pass cut at borders.
struct Cut<'a> {
    graph: &'a Graph,
    /// The base of each tensor.
    roots: Vec<TensorId>,
    /// By base. Held ones take no bytes here.
    storages: Vec<Storage>,
    /// Where the forward of each stage and of the loss starts, and where that of the loss ends.
    edges: Vec<usize>,
    /// Where the forward pass ends.
    end: usize,
    stages: Stages,
}

impl Cut<'_> {
    /// The backward operations of each stage: they end with the last one that reads anything made in this or a later stage.
    /// Independent operations belong to the first stage, which ends last.
    fn backward(&self) -> Vec<Range<usize>> {
        let operations = &self.graph.operations;
        let recorded = self.graph.updates().start;
        let pass = &operations[self.end..];
        let made: HashSet<&TensorId> = pass.iter().flat_map(|one| &one.outputs).collect();
        let read: HashSet<&TensorId> = operations.iter().flat_map(|one| &one.inputs).collect();
        // Where the backward pass has read each tensor. An operation is independent if it reads nothing that the backward pass
        // makes, and nothing reads its outputs, like running statistics, which a step returns at its end.
        let mut done = vec![0; self.roots.len()];
        for (place, operation) in operations.iter().enumerate().skip(self.end) {
            if operation.inputs.iter().any(|input| made.contains(input))
                || operation.outputs.iter().any(|output| read.contains(output))
            {
                for input in &operation.inputs {
                    done[input.index()] = recorded.min(place + 1);
                }
            }
        }
        let mut end = self.end;
        let mut ranges = Vec::new();
        for forward in self.stages.forward.iter().rev() {
            let start = end;
            let own = &operations[forward.clone()];
            for output in own.iter().flat_map(|operation| &operation.outputs) {
                end = end.max(done[output.index()]);
            }
            // Extend to the marked operations, as long as nothing inside an earlier stage is read.
            let own_mark = own.iter().find_map(|operation| operation.stage);
            let inside_earlier = |input: &TensorId| {
                let storage = &self.storages[self.roots[input.index()].index()];
                storage.made_in(&(0..forward.start)) && !storage.live().contains(&forward.start)
            };
            let later = &operations[end..recorded];
            let stop = later
                .iter()
                .position(|one| one.inputs.iter().any(inside_earlier));
            let reach = &later[..stop.unwrap_or(later.len())];
            let marked = reach
                .iter()
                .rposition(|one| own_mark.is_some() && one.stage >= own_mark);
            end += marked.map_or(0, |last| last + 1);
            ranges.push(start..end);
        }
        if let Some(first) = ranges.last_mut() {
            first.end = recorded;
        }
        ranges.reverse();
        ranges
    }

    /// Determines the operations that run once and the held storages, whose bytes it returns.
    fn hold(&mut self, most_crossed: usize) -> Bytes {
        let operations = &self.graph.operations;
        let forward = 0..self.end;
        let base = |tensor: &TensorId| self.roots[tensor.index()].index();
        let bytes = |tensors: &[TensorId]| -> Bytes {
            tensors.iter().map(|&t| self.graph.tensor(t).bytes).sum()
        };
        let mut once = vec![false; operations.len()];
        let mut made_once = vec![false; self.roots.len()];
        for (place, operation) in operations[forward.clone()].iter().enumerate() {
            let (inputs, outputs) = (&operation.inputs, &operation.outputs);
            // What is made alone from random draws, and is no larger, like a mask, is kept instead of them.
            let shrinks = !inputs.is_empty()
                && inputs.iter().all(|input| made_once[input.index()])
                && bytes(outputs) <= bytes(inputs);
            once[place] = !operation.repeatable || shrinks;
            for output in outputs {
                made_once[output.index()] = once[place];
            }
        }
        let crossed = |storage: &Storage| {
            let before = |point| self.edges.partition_point(|&edge| edge < point);
            before(storage.live().end) - before(storage.live().start)
        };
        let from_start =
            |one: &Storage| one.made_in(&forward) && (one.output || crossed(one) > most_crossed);
        let mut held: Vec<bool> = self.storages.iter().map(from_start).collect();
        let stage_of = self.stages.stage_of(self.graph);
        for (place, operation) in operations.iter().enumerate() {
            let reading = stage_of[place];
            for base in operation.inputs.iter().map(base) {
                let storage = &self.storages[base];
                let Some(made) = storage.made.filter(|made| forward.contains(made)) else {
                    continue;
                };
                let listed = |edge: &usize| storage.live().contains(edge);
                let around = &self.edges[reading..=reading + 1];
                let elsewhere = stage_of[made] != reading && !around.iter().any(listed);
                // What is made once is kept if the backward pass, or an operation that may run again, reads it.
                held[base] |= elsewhere || once[made] && !once[place];
            }
        }
        for (place, operation) in operations[forward].iter().enumerate() {
            let outputs = operation.outputs.iter().map(base);
            // A held output would be made twice if another output of its operation were not held.
            if outputs.clone().any(|base| held[base]) {
                outputs.for_each(|base| held[base] = true);
                once[place] = true;
            }
        }
        self.stages.once = once;
        let held = self.storages.iter_mut().zip(held).filter(|(_, held)| *held);
        held.map(|(storage, _)| std::mem::take(&mut storage.bytes))
            .sum()
    }

    /// The chain, with so many bytes of held storages.
    fn chain(&self, held: Bytes) -> Chain {
        let Stages {
            forward, backward, ..
        } = &self.stages;
        let loss = forward.len() - 1;
        let live = |edge: &usize| self.bytes(|one| one.live().contains(edge));
        let x: Vec<Bytes> = self.edges.iter().map(live).collect();
        let excess = (0..loss).map(|i| {
            let start = backward[i].start;
            let before = self.end..start;
            let waits = |one: &Storage| !one.output && one.last_read >= start;
            self.bytes(|one| one.made_in(&before) && waits(one)) - x[i + 1]
        });
        let excess = excess.max().unwrap_or_default();
        // A chain cannot express parameter gradients of the loss's own operations.
        let gradients = self.bytes(|one| one.output && one.made_in(&backward[loss]));
        let both = forward[loss].start..backward[loss].end;
        let (backward_s, peak_of_both) = self.backward_cost(&backward[loss], both);
        Chain {
            fixed_bytes: self.graph.fixed_bytes + held + excess + gradients,
            stages: (0..loss).map(|i| self.stage(i, x[i], x[i + 1])).collect(),
            loss: LossCost {
                forward_s: self.seconds(&forward[loss]),
                backward_s,
                forward_temp_bytes: self.peak(&forward[loss], |one| one.last_read),
                backward_temp_bytes: peak_of_both - x[loss],
            },
            ..Chain::default()
        }
    }

    fn stage(&self, i: usize, input: Bytes, output: Bytes) -> Stage {
        let (forward, backward) = (&self.stages.forward[i], &self.stages.backward[i]);
        let saves = |one: &Storage| one.made_in(forward) && one.last_read >= forward.end;
        let saved = self.bytes(saves).max(output);
        let grad = self.bytes(|one| one.output && one.made_in(backward));
        let (backward_s, made) = self.backward_cost(backward, backward.clone());
        Stage {
            name: i.to_string(),
            forward_s: self.seconds(forward),
            backward_s,
            output_bytes: output,
            saved_bytes: saved,
            forward_temp_bytes: self.peak(forward, |one| one.last_forward_read) - output,
            tracked_temp_bytes: self.peak(forward, |one| one.last_read) - saved,
            backward_temp_bytes: made - (input + grad),
            grad_bytes: grad,
            ..Stage::default()
        }
    }

    fn seconds(&self, range: &Range<usize>) -> Seconds {
        let operations = self.graph.operations[range.clone()].iter();
        operations.map(|operation| operation.seconds).sum()
    }

    fn bytes(&self, counts: impl Fn(&Storage) -> bool) -> Bytes {
        let counted = self.storages.iter().filter(|one| counts(one));
        counted.map(|one| one.bytes).sum()
    }

    /// The seconds of some backward operations, and the peak of the bytes made by `places`, which end with them; both with
    /// the updates that read their outputs.
    fn backward_cost(&self, range: &Range<usize>, places: Range<usize>) -> (Seconds, Bytes) {
        let operations = &self.graph.operations;
        let made = operations[range.clone()]
            .iter()
            .flat_map(|one| &one.outputs);
        let made: HashSet<&TensorId> = made.collect();
        let updates = operations[self.graph.updates()].iter();
        let here = updates.filter(|update| update.inputs.iter().any(|one| made.contains(one)));
        let most = here.clone().map(|update| update.temp_bytes).max();
        let seconds: Seconds = here.map(|update| update.seconds).sum();
        let peak = self.peak(&places, |one| match one.output || one.updating {
            true => range.end,
            false => one.last_read,
        });
        (
            self.seconds(range) + seconds,
            peak + most.unwrap_or_default(),
        )
    }

    /// The peak of the bytes that some operations make, each storage there until it is last read, with temporary bytes. Nothing is
    /// reused in place: the rest of the step may still read it.
    fn peak(&self, range: &Range<usize>, last_read: impl Fn(&Storage) -> usize) -> Bytes {
        let made = self.storages.iter().filter_map(|one| {
            let made = one.made.filter(|made| range.contains(made))?;
            Some((made..last_read(one) + 1, one.bytes.0))
        });
        let operations = self.graph.operations[range.clone()].iter();
        let held = operations.zip(sums(range, made));
        held.map(|(operation, held)| Bytes(held) + operation.temp_bytes)
            .max()
            .unwrap_or_default()
    }
}
