//! A program in terms of stages: which pass of which stage runs when, and the memory held.

use std::{collections::BTreeSet, ops::Range};

use serde::{Deserialize, Serialize};

use super::simulator::{Moment, simulate_watched};
use super::stages::Stages;
use super::{Graph, Program, TensorId, Transfer};
use crate::schedule::StageId;

/// What steps of a program are there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanPass {
    /// A stage's first forward.
    Forward,
    /// Some or all of a stage's forward operations again, or late.
    Recompute,
    /// The loss and its backward.
    Loss,
    /// A stage's backward.
    Backward,
}

/// Consecutive steps of a program that belong to one pass of one stage, transfers apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The purpose of the steps.
    pub pass: SpanPass,
    /// The stage; for the loss, the number of stages.
    pub stage: StageId,
    /// The direction, if the steps copy tensors between device and host in the middle of this pass.
    pub transfer: Option<Transfer>,
    /// Their range in the program.
    pub steps: Range<usize>,
}

impl Stages {
    /// The spans of a program, in order; together they cover all its steps. An update belongs to the pass in which it
    /// runs; transfers split a pass. `graph` is the one that was cut, possibly [with transfers](Graph::linked).
    ///
    /// # Panics
    /// If the program was made for another graph than the one that was cut.
    pub fn spans(&self, graph: &Graph, program: &Program) -> Vec<Span> {
        let loss = self.chain().stages.len();
        let stage_of = self.stage_of(graph);
        let recorded = graph.updates().start;
        let mut ran = vec![false; graph.operations.len()];
        let mut after_loss = false;
        let mut spans: Vec<Span> = Vec::new();
        let mut current = (SpanPass::Forward, StageId(0));
        for (step, id) in program.operations().iter().enumerate() {
            let operation = graph.operation(*id);
            if id.index() < recorded {
                let stage = stage_of[id.index()];
                after_loss |= stage == loss;
                let again = std::mem::replace(&mut ran[id.index()], true);
                let pass = match (stage == loss, operation.backward) {
                    (true, _) => SpanPass::Loss,
                    (_, true) => SpanPass::Backward,
                    _ if again || after_loss => SpanPass::Recompute,
                    _ => SpanPass::Forward,
                };
                current = (pass, StageId(stage));
            }
            let (pass, stage) = current;
            let transfer = operation.transfer;
            match spans.last_mut() {
                Some(last) if (last.pass, last.stage, last.transfer) == (pass, stage, transfer) => {
                    last.steps.end = step + 1;
                }
                _ => spans.push(Span {
                    pass,
                    stage,
                    transfer,
                    steps: step..step + 1,
                }),
            }
        }
        spans
    }
}

/// The memory of each span of a program: at its peak, and after it.
///
/// # Panics
/// If the program was made for another graph.
pub fn held(graph: &Graph, program: &Program, spans: &[Span]) -> Vec<Moment> {
    let mut held: Vec<Moment> = Vec::with_capacity(spans.len());
    simulate_watched(graph, program, |step, moment, _| {
        let next = spans.get(held.len());
        if next.is_some_and(|span| span.steps.start == step) {
            held.push(moment);
        } else if let Some(span) = held.last_mut() {
            if moment.at_peak.total() > span.at_peak.total() {
                span.at_peak = moment.at_peak;
            }
            span.after = moment.after;
        }
    });
    held
}

/// The tensors that a span of a program changes on the device. A view is the tensor whose storage it shares. Tensors of
/// no bytes are left out, and so are those that a span makes and frees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Those that are there after the span and were not before it.
    pub appeared: Vec<TensorId>,
    /// Those that were there before the span and are not after it; one whose storage was reused is gone.
    pub went: Vec<TensorId>,
}

/// What each span of a program changes.
///
/// # Panics
/// If the program was made for another graph.
pub fn changes(graph: &Graph, program: &Program, spans: &[Span]) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::with_capacity(spans.len());
    let mut before = BTreeSet::new();
    simulate_watched(graph, program, |step, _, memory| {
        let next = spans.get(changes.len());
        if next.is_none_or(|span| span.steps.end != step + 1) {
            return;
        }
        let now: BTreeSet<(usize, TensorId)> = memory.held().collect();
        changes.push(Change {
            appeared: now.difference(&before).map(|(_, tensor)| *tensor).collect(),
            went: before.difference(&now).map(|(_, tensor)| *tensor).collect(),
        });
        before = now;
    });
    changes
}
