//! The ranks that share a step.

use rekindle_plan::{
    Bytes,
    graph::{ExchangeCost, Graph, OperationId, Program, TensorId, Timetable},
};

use super::{
    RecordError,
    buckets::{Bucket, on_network},
    plan_summary::StepExchange,
    recording::Recording,
};
use crate::reduce::Reducer;

/// The ranks that share a step, as one of them sees it.
pub(super) struct StepRanks {
    pub(super) reducer: Reducer,
    /// This rank's samples divided by those of all ranks.
    pub(super) share: f64,
    pub(super) buckets: Vec<Bucket>,
    /// Number of values of each mean over ranks, in the order in which all ranks compute them.
    pub(super) means: Vec<usize>,
    /// The measured cost of their exchange.
    pub(super) cost: ExchangeCost,
}

impl StepRanks {
    /// What the exchange takes of a step, whose ranks send each other parameters of these sizes.
    pub(super) fn predicted(&self, timetable: &Timetable, parameters: &[Bytes]) -> StepExchange {
        StepExchange {
            ring: self.cost.ring,
            link_measured: self.reducer.link.is_none(),
            taken: self.cost.of_step(
                timetable,
                &on_network(self.buckets.iter().map(Bucket::elements)),
                // Each mean also carries the number of failed ranks.
                &on_network(self.means.iter().map(|values| values + 1)),
                parameters,
            ),
        }
    }
}

/// Exchanges the error messages of failed ranks and the largest number of updates on any rank. Returns the error for
/// this rank's caller, if any rank failed.
pub(super) fn failures(
    reducer: &Reducer,
    updated: usize,
    own: Option<RecordError>,
) -> (usize, Option<RecordError>) {
    let message = own.as_ref().map(ToString::to_string).unwrap_or_default();
    let message = [&(updated as u64).to_le_bytes(), message.as_bytes()].concat();
    let all = match reducer.all_gather(message).wait() {
        Ok(all) => all,
        Err(error) => return (updated, Some(own.unwrap_or(error.into()))),
    };
    let all = all.iter().filter_map(|one| one.split_first_chunk());
    let all: Vec<_> = all
        .map(|(updated, message)| (u64::from_le_bytes(*updated), message))
        .collect();
    let most = all.iter().map(|(updated, _)| *updated as usize).max();
    let first = all.iter().position(|(_, message)| !message.is_empty());
    let other = first.map(|rank| RecordError::OtherRank {
        rank,
        message: String::from_utf8_lossy(all[rank].1).into_owned(),
    });
    (most.unwrap_or(updated), own.or(other))
}

/// When a program completes the gradients of a recording's parameters, by the parameters' indices.
pub(super) fn timetable(recording: &Recording, graph: &Graph, program: &Program) -> Timetable {
    let parameters = recording.parameters.iter();
    let gradients = parameters.map(|one| one.gradient.map(|tensor| TensorId(tensor as u32)));
    let means = recording.synchronised();
    let means = means.map(|(place, _)| OperationId(place as u32)).collect();
    Timetable::new(graph, program, &gradients.collect::<Vec<_>>(), &means)
}
