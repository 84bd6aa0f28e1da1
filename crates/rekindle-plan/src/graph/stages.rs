//! A graph seen as a chain: its forward pass cut at borders into stages, so that the planners of chains can plan it.
//!
//! Stage i has the forward operations between two borders; those behind the last border are the loss. Its backward
//! ends at the last backward operation that reads anything made in stage i or later, or is
//! [marked](super::Operation::stage) as one of these. With R(S) the bytes of the
//! storages of a set:
//!
//! | the chain's | is |
//! |---|---|
//! | x_i | R(live at border i) |
//! | X_{i+1} | R(made in stage i and read by the backward, or live at border i + 1), at least x_{i+1} |
//! | f_i, F_i | what the stage's operations hold at their peak beyond x_{i+1}, X_{i+1} |
//! | b_i | what the backward's operations make at their peak beyond y_i + g_i |
//! | g_i | R(outputs of the graph that the backward makes); what an update reads goes with its stage, and is part of b_i |
//! | fixed bytes | those of the graph, what is *held*, and the largest excess of the gradients at a border over x_i |
//!
//! *Held* all along is what a chain has no place for: outputs of the forward pass; random draws, which run once;
//! storages that a border does not list but a later stage reads; and with [`Crossing::Held`] those that cross more
//! than one border, like the skips of a U-Net. With [`Crossing::Carried`] these are part of every x_i that they
//! cross.
//!
//! The chain is conservative: [`Stages::program`] of a schedule never takes more bytes or seconds on the graph than
//! the schedule on the chain. In-place operations and what a program frees inside a stage are the main reasons why it
//! takes less; simulating the program says by how much. Cost: O(operations and their tensors).

mod cut;

use std::ops::Range;

use super::{Graph, OperationId, Program, ProgramError};
use crate::action::{Action, StageId};
use crate::chain::Chain;
use crate::schedule::Schedule;

/// What becomes of a storage that crosses more than one border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// It is part of every boundary that it crosses, and recomputed with it.
    Carried,
    /// It is held all along.
    Held,
}

/// A graph cut into stages, and the chain that stands for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stages {
    chain: Chain,
    /// The operations of each stage's forward and backward, the loss last.
    forward: Vec<Range<usize>>,
    backward: Vec<Range<usize>>,
    /// Operations that run once, because all they make is held.
    once: Vec<bool>,
}

impl Stages {
    /// What each stage costs.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The forward operations of a stage, or with the number of stages those of the loss.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn forward(&self, stage: StageId) -> impl Iterator<Item = OperationId> + use<> {
        ids(self.forward[stage.0].clone())
    }

    /// The backward operations of a stage, or with the number of stages those of the loss.
    ///
    /// # Panics
    /// If there is no such stage.
    pub fn backward(&self, stage: StageId) -> impl Iterator<Item = OperationId> + use<> {
        ids(self.backward[stage.0].clone())
    }

    /// The operations of a schedule's actions, without those that would run for nothing: an untracked forward leaves
    /// out what only the backward reads.
    ///
    /// # Errors
    /// The schedule has more stages than the chain, so that an operation runs before its inputs are made; a schedule
    /// that the chain's simulator accepts gives none.
    ///
    /// # Panics
    /// If the graph is not the one that was cut, or an action names a stage that it does not have.
    pub fn program(&self, graph: &Graph, schedule: &Schedule) -> Result<Program, ProgramError> {
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
        for &action in schedule.actions() {
            match action {
                Action::Forward(stage)
                | Action::ForwardKeep(stage)
                | Action::ForwardTracked { stage, .. } => run(&self.forward[stage.0]),
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

fn ids(range: Range<usize>) -> impl Iterator<Item = OperationId> {
    range.map(|place| OperationId(place as u32))
}
