//! What the parts of a batch give together.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::Tensor,
};
use rekindle::{
    dtype::Dtype,
    meter::{PeakMemory, PhaseReading},
    record::{ExchangeReading, SpanReading},
};

use crate::ranks::Tally;

/// The joint results of the parts of a batch; phases and spans are those of the last part.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) gradients: GradientsParams,
    /// The sum of their squares, if known and used for clipping.
    pub(super) squares: Option<f64>,
    pub(super) loss: f64,
    pub(super) tally: Tally,
    pub(super) peak: PeakMemory,
    pub(super) phases: Vec<PhaseReading>,
    pub(super) spans: Vec<SpanReading>,
    pub(super) exchange: Option<ExchangeReading>,
}

/// Raises a peak to those of some phases.
pub(super) fn raise(peak: &mut PeakMemory, phases: &[PhaseReading]) {
    for PhaseReading { memory, .. } in phases {
        peak.in_use_bytes = peak.in_use_bytes.max(memory.peak_in_use_bytes);
        peak.reserved_bytes = peak.reserved_bytes.max(memory.peak_reserved_bytes);
    }
}

/// Adds a part's gradients to a sum in `f32`: halves would lose what is small beside the sum, and overflow sooner.
pub(super) fn accumulate<M: Module>(model: &M, sum: &mut GradientsParams, part: GradientsParams) {
    struct Add<'a> {
        sum: &'a mut GradientsParams,
        part: GradientsParams,
    }
    impl ModuleVisitor for Add<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // Removed, so that the gradient of a parameter that is used twice is added once.
            if let Some(gradient) = self.part.remove::<D>(param.id) {
                let gradient = gradient.cast(Dtype::F32.float());
                let sum = match self.sum.remove::<D>(param.id) {
                    Some(sum) => sum + gradient,
                    None => gradient,
                };
                self.sum.register::<D>(param.id, sum);
            }
        }
    }
    model.visit(&mut Add { sum, part });
}
