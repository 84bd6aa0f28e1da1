//! One rank that simulates several equal ones, to plan for more ranks than exist.

use rekindle_plan::graph::Rate;

use super::{Collective, Reducer};

/// Rank 0 of `ranks` in a ring of such links, without the others: every operation finishes at once, as if the other ranks
/// had the same input.
#[must_use]
pub fn rehearsal(ranks: usize, link: Rate) -> Reducer {
    let begin = move |operation: Collective| match operation {
        Collective::AllReduce(mut values, answer) => {
            values.iter_mut().for_each(|value| *value *= ranks as f32);
            answer.send(Ok(values));
        }
        Collective::AllGather(bytes, answer) => answer.send(Ok(vec![bytes; ranks])),
        Collective::Broadcast(_, bytes, answer) => answer.send(Ok(bytes)),
    };
    let mut reducer = Reducer::new(0, ranks, begin);
    reducer.link = Some(link);
    reducer
}
