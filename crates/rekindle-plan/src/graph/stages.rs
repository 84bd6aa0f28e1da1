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
//! random draws, which run once; storages that a border does not list but a later stage reads; and, if asked for, those
//! that cross more than one border, like the skips of a U-Net. Else the latter are part of every x_i that they cross, and
//! recomputed with it.
//!
//! The chain is conservative: [`Stages::program`] of a schedule never takes more bytes or seconds on the graph than the
//! schedule on the chain. It takes less mainly because of in-place operations and tensors freed inside a stage;
//! simulating the program gives the exact values. Cost: O(operations and their tensors).

mod cut;
mod of_chain;

use std::ops::Range;

use super::{Graph, GraphError, OperationId, Program};
use crate::chain::Chain;
use crate::schedule::{Action, Schedule, StageId};

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
        let mut stage_of = vec![0; graph.operations.len()];
        for ranges in [&self.forward, &self.backward] {
            for (stage, range) in ranges.iter().enumerate() {
                stage_of[range.clone()].fill(stage);
            }
        }
        stage_of
    }

    /// The operations of a schedule, without those whose results are unused: an untracked forward leaves out operations that
    /// only the backward pass needs.
    ///
    /// # Errors
    /// An operation runs before its inputs are made: the schedule is for more stages, or breaks its rules.
    ///
    /// # Panics
    /// If the graph is not the one that was cut, or the schedule has a stage that it does not have.
    pub fn program(&self, graph: &Graph, schedule: &Schedule) -> Result<Program, GraphError> {
        let loss = self.chain.stages.len();
        let actions = schedule.actions().into_iter();
        let ranges = actions.flat_map(|action| match action {
            Action::Forward(stage) => [Some(&self.forward[stage.0]), None],
            Action::Loss => [Some(&self.forward[loss]), Some(&self.backward[loss])],
            Action::Backward(stage) => [Some(&self.backward[stage.0]), None],
            Action::Optimize => [None, None],
        });
        let ranges = ranges.flatten().cloned().chain([graph.updates()]);
        let mut ran = vec![false; graph.operations.len()];
        let runs = |id: &OperationId| {
            let again = std::mem::replace(&mut ran[id.index()], true);
            !(again && self.once[id.index()])
        };
        let operations = ranges.flat_map(ids).filter(runs).collect();
        Ok(Program::settled(graph, operations)?.without_dead_runs(graph))
    }
}

fn ids(range: Range<usize>) -> impl Iterator<Item = OperationId> {
    range.map(|place| OperationId(place as u32))
}
