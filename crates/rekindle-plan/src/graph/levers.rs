//! The separate effects of recomputing and of updating in the backward pass on a peak.

use super::{Graph, Operation, OperationId, Program, ProgramError, simulate};
use crate::bytes::Bytes;

/// A program's peak with and without recomputing, and with and without updating in the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levers {
    /// Peak without recomputing, with the update after the step.
    pub neither: Bytes,
    /// Peak of the program's operations, with the update after the step.
    pub recomputing: Bytes,
    /// Peak without recomputing, with updates in the backward pass.
    pub updating: Bytes,
    /// Peak of the program.
    pub both: Bytes,
}

impl Levers {
    /// The peaks for a program of `graph`; `None` if the graph has no updates.
    ///
    /// # Errors
    /// The graph's order is wrong.
    pub fn of(graph: &Graph, program: &Program) -> Result<Option<Levers>, ProgramError> {
        let mut after = graph.clone();
        let places = graph.updates();
        let updates: Vec<Operation> = after.operations.drain(places.clone()).collect();
        let mut updating = Bytes::ZERO;
        for update in &updates {
            updating = updating.max(update.temp_bytes);
            for input in &update.inputs {
                after.tensors[input.index()].output = true;
            }
            for made in &update.outputs {
                after.tensors[made.index()].output = false;
            }
        }
        if updates.is_empty() {
            return Ok(None);
        }
        let plain = Program::recorded(&after)?;
        let operations = program.operations().iter();
        let operations = operations.filter_map(|id| match id.index() {
            place if place < places.start => Some(*id),
            place if place < places.end => None,
            _ => Some(OperationId(id.0 - updates.len() as u32)),
        });
        let same = Program::new(&after, operations.collect())?;
        let with_update = |program: &Program| {
            let run = simulate(&after, program);
            let end = run.resident.last().copied().unwrap_or_default();
            run.peak.max(end + updating)
        };
        Ok(Some(Levers {
            neither: with_update(&plain),
            recomputing: with_update(&same),
            updating: simulate(graph, &Program::recorded(graph)?).peak,
            both: simulate(graph, program).peak,
        }))
    }
}
