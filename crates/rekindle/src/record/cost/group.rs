//! Measurements of a group of operations, and the cost derived from them.

use rekindle_plan::Bytes;

use super::{
    costs::{ALIGNED, Cost, LARGE},
    probe::Interval,
};
use crate::record::operation::may_be_view;

/// Measurements of a group of operations.
#[derive(Default)]
pub(super) struct Group {
    pub(super) seconds: Vec<f64>,
    pub(super) runs: Vec<Look>,
    /// The input whose storage was reused, for each pass with a run that could free one.
    pub(super) took_over: Vec<Option<usize>>,
}

/// One measurement of its memory, in bytes.
pub(super) struct Look {
    pub(super) output_bytes: u64,
    pub(super) temp_bytes: u64,
}

impl Group {
    /// Bytes that an operation of the group takes beside its inputs while it runs: as measured, or as `estimated` before
    /// that.
    pub(super) fn takes(&self, estimated: &Cost, in_place: bool) -> Bytes {
        let temp_bytes = self.runs.iter().map(|look| look.temp_bytes).max();
        let output_bytes = match in_place {
            true => 0,
            false => self
                .outputs(estimated)
                .max()
                .unwrap_or(estimated.output_bytes),
        };
        Bytes(output_bytes + temp_bytes.unwrap_or(estimated.temp_bytes))
    }

    /// Bytes of the outputs as measured. The first measurement may be from the warm-up, where what threads keep from then
    /// on looks like outputs.
    fn outputs(&self, estimated: &Cost) -> impl Iterator<Item = u64> {
        let warm_up = self.runs.len() > 1 || estimated.kept_bytes > 0;
        let looks = self.runs.iter().skip(usize::from(warm_up));
        looks.map(|look| look.output_bytes)
    }

    /// Adds a run. `look` is given in the pass's first run of the group; `over` is the input whose storage could be
    /// reused.
    pub(super) fn note(
        &mut self,
        pass: usize,
        look: Option<Look>,
        kept: &Interval,
        taken: &Interval,
        over: Option<usize>,
    ) {
        if pass == 0 && look.is_some() {
            // Warm-up: tables grow, kernels are compiled.
            self.seconds.clear();
        }
        self.seconds.push(taken.seconds);
        if over.is_some() {
            let in_place = taken.took_over(kept.kept());
            self.took_over.push(over.filter(|_| in_place));
        }
        self.runs.extend(look);
    }

    pub(super) fn cost(&self, estimated: &Cost, name: &str, numbers: u64, unit: u64) -> Cost {
        // The first measurement may be from the warm-up.
        let looks = &self.runs[self.runs.len().min(2) / 2..];
        // Occasionally a table grows during a measurement: the minimum is the outputs.
        let output_bytes = match self.outputs(estimated).min() {
            Some(measured) => alike(numbers, measured, unit),
            None => estimated.output_bytes,
        };
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
            temp_bytes,
            kept_bytes: 0,
            seconds: median(&self.seconds),
            view,
            in_place: took_over.filter(|_| always && !view),
            measured: true,
        }
    }
}

/// The median; 0 if there are no values.
pub(super) fn median(seconds: &[f64]) -> f64 {
    let mut seconds = seconds.to_vec();
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or_default()
}

/// The bytes of an output, from its numbers and the measurement. Operations allocate a little more for some outputs:
/// large outputs that exceed their numbers by at most a thousandth all count as that upper bound, so that outputs of
/// one size are equal. On a device whose driver rounds them up to a `unit` they count as their numbers: what is more is a
/// small buffer of its own.
fn alike(numbers: u64, measured: u64, unit: u64) -> u64 {
    let most = (numbers + numbers / 1024).next_multiple_of(ALIGNED) + ALIGNED;
    match (numbers..=most).contains(&measured) && numbers >= LARGE {
        true if unit > ALIGNED => numbers,
        true => most,
        false => measured,
    }
}
