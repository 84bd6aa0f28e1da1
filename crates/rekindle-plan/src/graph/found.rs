//! Programs with their costs.

use super::{Graph, Program, Simulated, simulate};
use crate::bytes::Bytes;

/// A program and its cost.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) program: Program,
    pub(crate) simulated: Simulated,
}

impl Found {
    /// The program without runs whose results are unused.
    pub(crate) fn of(graph: &Graph, program: &Program) -> Found {
        let program = program.without_dead_runs(graph);
        let simulated = simulate(graph, &program);
        Found { program, simulated }
    }

    pub(crate) fn peak(&self) -> Bytes {
        self.simulated.peak
    }
}
