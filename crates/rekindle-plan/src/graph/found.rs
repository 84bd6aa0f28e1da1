//! Programs with their costs, and their comparison.

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

    pub(crate) fn seconds(&self) -> f64 {
        self.simulated.time.0
    }

    /// Whether it takes less time, or the same time and fewer bytes.
    pub(crate) fn beats(&self, other: &Found) -> bool {
        let time = self.seconds().total_cmp(&other.seconds());
        time.then(self.peak().cmp(&other.peak())).is_lt()
    }
}

/// Keeps the better one.
pub(crate) fn keep_better(best: &mut Option<Found>, found: Found) {
    if best.as_ref().is_none_or(|best| found.beats(best)) {
        *best = Some(found);
    }
}
