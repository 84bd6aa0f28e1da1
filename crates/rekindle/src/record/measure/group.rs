//! What was seen of operations that are alike, and what they are taken to cost.

use rekindle_plan::Bytes;

use super::{
    costs::{ALIGNED, Cost, LARGE},
    probe::took_over,
};
use crate::{
    meter::{Interval, median, with_margin},
    record::operation::may_be_view,
};

/// What was seen of a group of operations.
#[derive(Default)]
pub(super) struct Group {
    pub(super) seconds: Vec<f64>,
    pub(super) runs: Vec<Look>,
    /// The input whose storage was taken over, of each pass with a run that could free one.
    pub(super) took_over: Vec<Option<usize>>,
}

/// One look at its memory.
pub(super) struct Look {
    pub(super) output_bytes: u64,
    pub(super) temp_bytes: u64,
}

impl Group {
    /// What an operation of the group takes while it runs, as far as it is known.
    pub(super) fn takes(&self) -> Bytes {
        let takes = self
            .runs
            .iter()
            .map(|look| look.output_bytes + look.temp_bytes);
        Bytes(takes.max().unwrap_or_default())
    }

    /// `look` is there in the pass's first run of the group; `over` is the input that could be taken over.
    pub(super) fn note(
        &mut self,
        pass: usize,
        look: Option<Look>,
        kept: &Interval,
        taken: &Interval,
        over: Option<usize>,
    ) {
        if pass == 0 && look.is_some() {
            // Warming up: tables grow, kernels are compiled.
            self.seconds.clear();
        }
        self.seconds.push(taken.seconds);
        if over.is_some() {
            let in_place = took_over(taken, kept.kept());
            self.took_over.push(over.filter(|_| in_place));
        }
        self.runs.extend(look);
    }

    pub(super) fn cost(&self, name: &str, numbers: u64) -> Cost {
        // The first look may be a warm-up's.
        let looks = &self.runs[self.runs.len().min(2) / 2..];
        // Now and then a table grows while one is looked at, or a thread takes scratch for good: the least is the outputs.
        let least = looks.iter().map(|look| look.output_bytes).min();
        let output_bytes = alike(numbers, least.unwrap_or_default());
        let temp_bytes = looks
            .iter()
            .map(|look| look.temp_bytes)
            .max()
            .unwrap_or_default();
        let view = may_be_view(name) && output_bytes < numbers / 2;
        // As above.
        let took = &self.took_over[self.took_over.len().min(2) / 2..];
        let took_over = took.first().copied().flatten();
        let always = took.iter().all(|one| *one == took_over);
        Cost {
            output_bytes,
            temp_bytes: with_margin(temp_bytes),
            seconds: median(self.seconds.iter().copied()),
            view,
            in_place: took_over.filter(|_| always && !view),
        }
    }
}

/// What an output takes, by its numbers and as it was measured. Operations leave a little beside some outputs: those of one
/// size count as equally large, a thousandth more than their numbers.
fn alike(numbers: u64, measured: u64) -> u64 {
    let most = (numbers + numbers / 1024).next_multiple_of(ALIGNED) + ALIGNED;
    match (numbers..=most).contains(&measured) && numbers >= LARGE {
        true => most,
        false => measured,
    }
}
