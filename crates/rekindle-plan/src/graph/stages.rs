//! A graph as a chain: its forward pass is cut at borders into stages (`cut.rs`), so that the planners for chains can plan
//! it. For a chain without a graph, `of_chain.rs` makes one.
//!
//! Stage i has the forward operations between two borders; those after the last border are the loss. Its backward pass
//! ends at the last backward operation that reads anything made in stage i or later, or is
//! [marked](super::Operation::stage) with such a stage. Let R(S) be the bytes of the storages of a set S:
//!
//! | of the chain | value |
//! |---|---|
//! | x_i | R(live at border i) |
//! | X_{i+1} | R(made in stage i and read by the backward pass, or live at border i + 1), at least x_{i+1} |
//! | f_i, F_i | the peak of the stage's operations minus x_{i+1}, X_{i+1} |
//! | b_i | the peak of the bytes made by the backward operations minus y_i + g_i |
//! | g_i | R(outputs of the graph made by the backward pass); tensors that an update reads are freed with their stage, and are part of b_i |
//! | fixed bytes | fixed bytes of the graph, *held* storages, and the largest excess of the gradients at a border over x_i |
//!
//! *Held* storages are those that a chain cannot express and that are held throughout: outputs of the forward pass;
//! random draws, which run once; storages that a border does not list but a later stage reads; and, with
//! [`Crossing::Held`], those that cross more than one border, like the skips of a U-Net. With [`Crossing::Carried`] the
//! latter are part of every x_i that they cross.
//!
//! The chain is conservative: [`Stages::program`] of a schedule never takes more bytes or seconds on the graph than the
//! schedule on the chain. It takes less mainly because of in-place operations and tensors freed inside a stage;
//! simulating the program gives the exact values. Cost: O(operations and their tensors).

mod cut;
mod of_chain;

use std::ops::Range;

use super::{Graph, GraphError, OperationId, Program};
use crate::chain::Chain;
use crate::schedule::{Action, StageId};

/// How to count a storage that crosses more than one border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Crossing {
    /// It is part of every boundary that it crosses, and recomputed with it.
    Carried,
    /// It is held throughout.
    Held,
}

/// A graph in stages, and the chain that represents it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    chain: Chain,
    /// The operations of each stage's forward and backward, the loss last.
    forward: Vec<Range<usize>>,
    backward: Vec<Range<usize>>,
    /// Operations that run once, because all their outputs are held.
    once: Vec<bool>,
}

impl Stages {
    /// The costs of each stage.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The forward operations of a stage, or, with the number of stages as argument, of the loss.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn forward(&self, stage: StageId) -> impl Iterator<Item = OperationId> + use<> {
        ids(self.forward[stage.0].clone())
    }

    /// The backward operations of a stage, or, with the number of stages as argument, of the loss.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn backward(&self, stage: StageId) -> impl Iterator<Item = OperationId> + use<> {
        ids(self.backward[stage.0].clone())
    }

    /// The stage of each operation, the loss last; 0 of updates and transfers.
    pub(super) fn stage_of(&self, graph: &Graph) -> Vec<usize> {
        stage_of(&self.forward, &self.backward, graph.operations.len())
    }

    /// The operations of a [schedule](crate::schedule), without those whose results are unused: an untracked forward leaves
    /// out operations that only the backward pass needs.
    ///
    /// # Errors
    /// An operation runs before its inputs are made: the schedule is for more stages, or breaks its rules.
    ///
    /// # Panics
    /// If the graph is not the one that was cut, or an action names a stage that it does not have.
    pub fn program(&self, graph: &Graph, schedule: &[Action]) -> Result<Program, GraphError> {
        let loss = StageId(self.chain.stages.len());
        let mut ran = vec![false; graph.operations.len()];
        let mut operations = Vec::new();
        let mut run = |range: &Range<usize>| {
            for id in ids(range.clone()) {
                if !(std::mem::replace(&mut ran[id.index()], true) && self.once[id.index()]) {
                    operations.push(id);
                }
            }
        };
        for &action in schedule {
            match action {
                Action::Forward(stage) => run(&self.forward[stage.0]),
                Action::Loss => {
                    run(&self.forward[loss.0]);
                    run(&self.backward[loss.0]);
                }
                Action::Backward(stage) => run(&self.backward[stage.0]),
                Action::Optimize => {}
            }
        }
        let updates = graph.recorded_operations()..graph.operations.len();
        operations.extend(ids(updates));
        Ok(Program::settled(graph, operations)?.without_dead_runs(graph))
    }
}

fn stage_of(forward: &[Range<usize>], backward: &[Range<usize>], operations: usize) -> Vec<usize> {
    let mut stage_of = vec![0; operations];
    for ranges in [forward, backward] {
        for (stage, range) in ranges.iter().enumerate() {
            stage_of[range.clone()].fill(stage);
        }
    }
    stage_of
}

fn ids(range: Range<usize>) -> impl Iterator<Item = OperationId> {
    range.map(|place| OperationId(place as u32))
}
