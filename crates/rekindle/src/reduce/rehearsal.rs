//! One rank that stands for several equal ones: for plans of more ranks than there are.

use std::time::Duration;

use rekindle_plan::graph::Rate;

use super::{Clock, Collective, Reducer, TIME_LIMIT};

/// Rank 0 of several, alone: every operation is answered at once, as if the others gave the same.
#[derive(Debug, Clone)]
pub struct Rehearsal {
    ranks: usize,
    link: Option<Rate>,
    clock: Clock,
}

impl Rehearsal {
    /// Of so many ranks, which are joined in a ring by links such as this.
    #[must_use]
    pub fn new(ranks: usize, link: Rate) -> Self {
        Self {
            ranks,
            link: Some(link),
            clock: Clock::default(),
        }
    }

    /// One rank.
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
