//! Whether a training fits, by its shapes alone: what its peak is made of, the fastest schedule of a kind within a budget, the
//! fastest number of parts of a batch, and the largest size that fits.

mod parts;
mod schedule_kind;

use rekindle_plan::{Action, Bytes, Stage};
use schemars::JsonSchema;
use serde::Serialize;

use crate::session::Planned;
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
    pub fn new(estimate: &Estimate, planned: &Planned) -> Self {
        let summed_bytes = estimate.between_parts_bytes;
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
        Action::Optimize => "the optimizer's step, a snapshot, or the recording".into(),
    }
}

/// What is known of the largest size that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// It fits; 0 if none is known to.
    pub fits: usize,
    /// It does not, and larger ones are taken not to fit either.
    pub below: usize,
    /// Whether the search came to its end.
    pub complete: bool,
}

/// The largest size from 1 to `limit` that fits, or one that is at most `precision` (a share of it) smaller, or the best so far
/// once `goes_on` says no. Sizes above one that does not fit are taken not to fit either.
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
    (factor, precision): (f64, f64),
    mut goes_on: impl FnMut(&Bounds) -> bool,
    mut fits: impl FnMut(usize) -> Result<bool, E>,
) -> Result<Bounds, E> {
    let mut known = Bounds {
        fits: 0,
        below: limit.saturating_add(1),
        complete: true,
    };
    let mut size = first;
    loop {
        let (low, high) = (known.fits, known.below);
        let gap = high - low;
        let (known_fit, known_not) = (low > 0, high <= limit);
        if gap <= 1 || (known_fit && known_not && gap as f64 <= precision * low as f64) {
            return Ok(known);
        }
        if known_fit || known_not {
            known.complete = goes_on(&known);
            if !known.complete {
                return Ok(known);
            }
            size = match (known_fit, known_not) {
                (true, false) => (low as f64 * factor).ceil() as usize,
                (false, _) => (high as f64 / factor) as usize,
                (true, true) => low + gap / 2,
            };
        }
        size = size.clamp(low + 1, high - 1);
        if fits(size)? {
            known.fits = size;
        } else {
            known.below = size;
        }
    }
}
