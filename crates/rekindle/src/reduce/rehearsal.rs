//! One rank that simulates several equal ones, to plan for more ranks than exist.

use std::time::Duration;

use rekindle_plan::graph::Rate;

use super::{Collective, Reducer, TIME_LIMIT};

/// Rank 0 of several, without the others: every operation finishes at once, as if the other ranks had the same input.
#[derive(Debug, Clone)]
pub struct Rehearsal {
    ranks: usize,
    link: Rate,
}

impl Rehearsal {
    /// Simulates `ranks` ranks in a ring of such links.
    #[must_use]
    pub fn new(ranks: usize, link: Rate) -> Self {
        Self { ranks, link }
    }
}

impl Reducer for Rehearsal {
    fn rank(&self) -> usize {
        0
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn time_limit(&self) -> Duration {
        TIME_LIMIT
    }

    fn link(&self) -> Option<Rate> {
        Some(self.link)
    }

    fn begin(&self, operation: Collective) {
        match operation {
            Collective::AllReduce(mut values, answer) => {
                let ranks = self.ranks as f32;
                values.iter_mut().for_each(|value| *value *= ranks);
                answer.send(Ok(values));
            }
            Collective::AllGather(bytes, answer) => answer.send(Ok(vec![bytes; self.ranks])),
            Collective::Broadcast(_, bytes, answer) => answer.send(Ok(bytes)),
        }
    }
}
