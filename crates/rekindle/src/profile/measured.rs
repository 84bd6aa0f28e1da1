//! What was measured, and the chain as one schedule meets it.

use rekindle_plan::{Bytes, Chain, Schedule};

use crate::executor;

/// A measured chain, and what the chain's terms cannot say.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The chain. Its `saved_bytes` count every stage's output, as they must for a stage that ends a piece of graph.
    pub chain: Chain,
    /// Whether nothing but the chain holds a stage's output: neither its own graph nor that of the next stage, as
    /// where a batch normalisation follows. Inside a piece such an output goes as soon as the next stage has run.
    pub fleeting_output: Vec<bool>,
}

impl Measured {
    /// The chain as one schedule meets it: outputs that go early inside a piece are counted only while they are there.
    ///
    /// Its peak under this schedule is at most that of the plain [`chain`](Self::chain), and closer to the truth.
    #[must_use]
    pub fn under(&self, schedule: &Schedule) -> Chain {
        let mut chain = self.chain.clone();
        for (stage, inside) in executor::inside_pieces(schedule).into_iter().enumerate() {
            if !inside || !self.fleeting_output[stage] {
                continue;
            }
            let output = chain.stages[stage].output_bytes;
            let this = &mut chain.stages[stage];
            this.saved_bytes = Bytes(this.saved_bytes.0.saturating_sub(output.0));
            // The peaks of the stage's own forward and backward were measured with the output held.
            this.tracked_temp_bytes += output;
            this.backward_temp_bytes += output;
            if let Some(next) = chain.stages.get_mut(stage + 1) {
                next.tracked_temp_bytes += output;
            }
        }
        chain
    }
}
