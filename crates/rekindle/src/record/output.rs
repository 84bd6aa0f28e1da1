//! The output of a step: loss, auxiliary output, gradients; and the running statistics that it updates.

use std::{collections::HashMap, time::Duration};

use burn::{
    module::Module,
    optim::GradientsParams,
    tensor::{DispatchTensor, Tensor},
};
use rekindle_plan::Bytes;

use super::{
    RecordError,
    exchange::ExchangeReading,
    finite,
    places::{Parameter, put_statistics},
    planned::Current,
    rank::of_rank,
    recording::Recording,
};
use crate::{
    meter::{MemoryReading, PhaseReading},
    tensor_tree::{TensorTree, map_alike},
};

/// Memory after one span of a step's program, and its peak within the span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanReading {
    /// The memory.
    pub memory: MemoryReading,
    /// When the span was done, counted from the start of the step.
    pub done_at: Duration,
}

/// The output of a step.
pub struct Output<A> {
    /// The loss, shape `[1]`, without autodiff: of the whole batch if [ranks](crate::reduce) share the step.
    pub loss: Tensor<1>,
    /// The auxiliary output, without autodiff, for this rank's samples.
    pub auxiliary: A,
    /// Gradients of the parameters, for burn's optimizers: of the whole batch if ranks share the step.
    pub gradients: GradientsParams,
    /// Memory at the step's end, and its peak since the step began, without a later optimizer update. The peak includes
    /// comparing the step, and recording and planning it if this step needed that.
    pub memory: MemoryReading,
    /// Memory and time of forward pass, loss and backward pass.
    pub phases: Vec<PhaseReading>,
    /// Memory after every span of the program, if the step is [watched](super::Step::set_watched).
    #[doc(hidden)]
    pub spans: Vec<SpanReading>,
    /// The peak predicted for this run and the update after it:
    /// [`PlanSummary::predicted_peak`](super::PlanSummary::predicted_peak), plus the growth of the process's other memory
    /// since planning. Equal to the plan's peak if nothing was added. `memory` ends with the step, so its peak may be
    /// lower than this if the peak is in the update.
    pub predicted_peak: Bytes,
    /// Measurements of the exchange, if [ranks](crate::reduce) share the step.
    pub exchange: Option<ExchangeReading>,
}

impl<A> Output<A> {
    /// With another auxiliary output, made from this one.
    #[must_use]
    pub fn map<B>(self, auxiliary: impl FnOnce(A) -> B) -> Output<B> {
        Output {
            loss: self.loss,
            auxiliary: auxiliary(self.auxiliary),
            gradients: self.gradients,
            memory: self.memory,
            phases: self.phases,
            spans: self.spans,
            predicted_peak: self.predicted_peak,
            exchange: self.exchange,
        }
    }
}

/// The results of a program, and the readings while it ran.
pub(super) struct Done {
    pub(super) tensors: HashMap<usize, DispatchTensor>,
    /// That of the whole batch if ranks share the step.
    pub(super) loss: DispatchTensor,
    pub(super) exchange: Option<ExchangeReading>,
    pub(super) phases: Vec<PhaseReading>,
    pub(super) spans: Vec<SpanReading>,
}

impl Done {
    /// Checks that loss and gradients are finite and were computed.
    pub(super) fn check(&self, recording: &Recording) -> Result<(), RecordError> {
        let gradients = self.gradients(recording);
        let named = gradients.map(|(parameter, gradient)| (parameter.path.as_str(), gradient));
        let loss = Tensor::from_dispatch(self.loss.clone());
        finite::check(&loss, &named.collect::<Vec<_>>())
    }

    /// Builds the output, and updates the running statistics of `model`.
    pub(super) fn finish<M: Module, A: TensorTree>(
        mut self,
        current: &Current<A>,
        model: &M,
    ) -> Result<Output<A>, RecordError> {
        let measured = &current.plan.measured;
        let recording = &measured.recording;
        let mut gradients = GradientsParams::new();
        for (parameter, gradient) in self.gradients(recording) {
            of_rank!(gradient, D => gradients.register::<D>(parameter.id, Tensor::from_dispatch(gradient.clone())));
        }
        let auxiliary = recording.auxiliary.iter();
        let auxiliary: Option<Vec<DispatchTensor>> = auxiliary
            .map(|tensor| self.tensors.get(tensor).cloned())
            .collect();
        let mut values = Values(auxiliary.ok_or(RecordError::LossElsewhere)?.into_iter());
        let template = current.auxiliary.as_ref();
        let template = template.unwrap_or(&measured.auxiliary);
        let auxiliary = template.clone().map(&mut values);
        if !recording.statistics.is_empty() {
            let moved = recording.statistics.iter();
            let moved =
                moved.filter_map(|(place, tensor)| Some((*place, self.tensors.remove(tensor)?)));
            drop(put_statistics(model.clone(), &moved.collect()));
        }
        let begun = MemoryReading {
            peak_in_use_bytes: current.begun,
            ..MemoryReading::default()
        };
        let memories = self.phases.iter().map(|phase| phase.memory);
        Ok(Output {
            loss: Tensor::from_dispatch(self.loss),
            auxiliary,
            gradients,
            memory: memories.fold(begun, |before, now| now.after(before)),
            phases: self.phases,
            spans: self.spans,
            predicted_peak: current.predicted_peak,
            exchange: self.exchange,
        })
    }

    fn gradients<'a>(
        &'a self,
        recording: &'a Recording,
    ) -> impl Iterator<Item = (&'a Parameter, &'a DispatchTensor)> {
        let parameters = recording.parameters.iter();
        parameters.filter_map(|one| Some((one, self.tensors.get(&one.gradient?)?)))
    }
}

/// Puts values into a template, in order.
struct Values(std::vec::IntoIter<DispatchTensor>);

map_alike!(Values, |self, _old| {
    match self.0.next() {
        Some(tensor) => Tensor::from_dispatch(tensor),
        None => panic!("an activation whose `visit` and `map` name different tensors"),
    }
});
