//! Whether a training fits, by its shapes alone: what its peak is made of, the fastest schedule of a kind within a budget, the
//! fastest number of parts of a batch, and the largest size that fits.

mod parts;
mod schedule_kind;

use rekindle_plan::{Action, Bytes, Stage};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{session::Planned, settings::TrainSettings};
pub use parts::parts;
use rekindle::record::Estimate;
pub use schedule_kind::{ScheduleKind, spread};

/// The bytes of the moment that holds most. Their sum is the predicted peak.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Breakdown {
    /// Parameters.
    pub parameters_bytes: Bytes,
    /// Gradients of parameters that exist at that moment.
    pub gradients_bytes: Bytes,
    /// The optimizer's state.
    pub optimizer_bytes: Bytes,
    /// Activations that wait for the backward pass, and those that were made again in it.
    pub activations_bytes: Bytes,
    /// Gradients of activations, and what kernels hold for a while.
    pub temporaries_bytes: Bytes,
    /// Input and targets.
    pub data_bytes: Bytes,
    /// Frozen parameters, running statistics, and what kernels and tables keep.
    pub other_bytes: Bytes,
    /// The moment of the peak, in words.
    pub at: String,
}

impl Breakdown {
    /// The peak of a plan for an estimated step.
    #[must_use]
    pub fn new(estimate: &Estimate, settings: &TrainSettings, planned: &Planned) -> Self {
        let summed_bytes = settings.accumulated_bytes(estimate.trainable);
        let (action, parts) = planned.at_peak();
        let (parameters, data) = (estimate.gradient_bytes, estimate.input_bytes);
        let state = estimate.state_bytes;
        Self {
            parameters_bytes: parameters,
            gradients_bytes: parts.parameter_gradients + summed_bytes,
            optimizer_bytes: state,
            activations_bytes: parts.activations + parts.graphs,
            temporaries_bytes: parts.gradients + parts.temporary,
            data_bytes: data,
            other_bytes: parts.fixed - parameters - data - state - summed_bytes,
            at: moment(action, &planned.staged.chain.stages),
        }
    }
}

fn moment(action: Action, stages: &[Stage]) -> String {
    match action {
        Action::Forward(stage) => format!("the forward of {}", stages[stage.0].name),
        Action::Backward(stage) => format!("the backward of {}", stages[stage.0].name),
        Action::Loss => "the loss".into(),
        Action::Optimize => "the optimizer's step".into(),
    }
}

/// The largest size from 1 to `limit` that fits, or one that is at most `precision` (a share of it) smaller; `None` if
/// not even 1 fits. Sizes above one that does not fit are taken not to fit either.
///
/// From `first` on, sizes grow or shrink by `factor` until the largest lies between two of them; then the gap is
/// halved. This takes about log(answer / first) / log(factor) + log2(1 / `precision`) calls of `fits`.
///
/// # Errors
///
/// The first that `fits` returns.
pub fn largest<E>(
    limit: usize,
    first: usize,
    factor: f64,
    precision: f64,
    mut fits: impl FnMut(usize) -> Result<bool, E>,
) -> Result<Option<usize>, E> {
    if limit == 0 {
        return Ok(None);
    }
    // Known to fit, and known not to.
    let (mut low, mut high) = (0, limit.saturating_add(1));
    let mut size = first.clamp(1, limit);
    loop {
        if fits(size)? {
            low = size;
        } else {
            high = size;
        }
        let (known_fit, known_not) = (low > 0, high <= limit);
        let gap = high - low;
        if gap <= 1 || (known_fit && known_not && gap as f64 <= precision * low as f64) {
            return Ok(known_fit.then_some(low));
        }
        size = match (known_fit, known_not) {
            (true, false) => (low as f64 * factor).ceil() as usize,
            (false, _) => (high as f64 / factor) as usize,
            (true, true) => low + gap / 2,
        };
        size = size.clamp(low + 1, high - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Costs that rise in different ways: evenly, in steps, ever faster, hardly, not at all.
    fn cost(kind: usize, size: usize) -> usize {
        match kind {
            0 => 100 + 7 * size,
            1 => 64 * size.div_ceil(16),
            2 => size * size,
            3 => size.ilog2() as usize,
            _ => 5,
        }
    }

    #[test]
    fn the_search_finds_what_trying_every_size_finds() {
        for kind in 0..5 {
            for limit in [0, 1, 2, 3, 50, 127] {
                for room in 0..600 {
                    let tried = (1..=limit)
                        .take_while(|&size| cost(kind, size) <= room)
                        .last();
                    for (first, factor) in [(1, 2.0), (20, 1.1), (500, 2.0)] {
                        let found = largest(limit, first, factor, 0.0, |size| {
                            Ok::<_, Infallible>(cost(kind, size) <= room)
                        });
                        assert_eq!(found, Ok(tried), "cost {kind}, limit {limit}, room {room}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_good_first_guess_takes_few_questions() {
        let exact = (1_000_000_007 - 1_000) / 13;
        for (off, most) in [(1.0, 8), (0.8, 10), (1.3, 12)] {
            let mut questions = 0;
            let first = (exact as f64 * off) as usize;
            let found = largest(1 << 40, first, 1.1, 0.01, |size| {
                questions += 1;
                Ok::<_, Infallible>(1_000 + 13 * size <= 1_000_000_007)
            });
            let found = found.ok().flatten().expect("size 1 fits");
            assert!(found <= exact && found as f64 >= exact as f64 * 0.99);
            assert!(questions <= most, "{questions} from {off}");
        }
    }
}
