//! One rank that simulates several equal ones, to plan for more ranks than exist.

use std::time::Duration;

use rekindle_plan::graph::Rate;

use super::{Clock, Collective, Reducer, TIME_LIMIT};

/// Rank 0 of several, without the others: every operation finishes at once, as if the other ranks had the same input.
#[derive(Debug, Clone)]
pub struct Rehearsal {
    ranks: usize,
    link: Option<Rate>,
    clock: Clock,
}

impl Rehearsal {
    /// Simulates `ranks` ranks in a ring of such links.
    #[must_use]
    pub fn new(ranks: usize, link: Rate) -> Self {
        Self {
            ranks,
            link: Some(link),
            clock: Clock::default(),
        }
    }

    /// A single rank.
    pub(crate) fn alone(clock: Clock) -> Self {
        Self {
            ranks: 1,
            link: None,
            clock,
        }
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

    fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn link(&self) -> Option<Rate> {
        self.link
    }

    fn begin(&self, operation: Collective) {
        let done = self.clock.now();
        match operation {
            Collective::AllReduce(mut values, answer) => {
                if self.ranks > 1 {
                    let ranks = self.ranks as f32;
                    values.iter_mut().for_each(|value| *value *= ranks);
                }
                answer.send_at(Ok(values), done);
            }
            Collective::AllGather(bytes, answer) => {
                answer.send_at(Ok(vec![bytes; self.ranks]), done);
            }
            Collective::Broadcast(_, bytes, answer) => answer.send_at(Ok(bytes), done),
        }
    }
}
