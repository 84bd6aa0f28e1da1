//! What a plan does beyond the plain step: operations that run again, and tensors that wait in host memory.

use std::collections::{BTreeMap, HashMap};

use rekindle_plan::{
    Bytes, Seconds, StageId,
    graph::{OperationId, PlanError, Stages, TensorId},
};
use serde::Serialize;

use super::{RecordError, profile::StepProfile, staged::Order};

/// What costs a plan time that the plain step does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ExtraWork {
    /// An operation runs again.
    Recompute,
    /// A tensor goes to host memory and comes back.
    Offload,
}

/// Operations of one kind, shape and stage that run again, or the tensors that they make and that wait in host memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Extra {
    /// What is done.
    pub work: ExtraWork,
    /// burn's name of the operation, such as `Matmul`; `forward` or `backward` where it is not known.
    pub kind: String,
    /// The shape of what it makes; empty where it is not known.
    pub shape: Vec<usize>,
    /// The stage, from 0; the number of stages stands for the loss.
    #[cfg_attr(feature = "schema", schemars(with = "usize"))]
    pub stage: StageId,
    /// How many such operations or tensors there are.
    pub count: usize,
    /// How often they run again or come back, all together.
    pub times: usize,
    /// What that takes of a step, or of one part of its batch.
    #[serde(rename = "added_s")]
    pub seconds: Seconds,
    /// Bytes of what each of these times makes, all together.
    pub bytes: Bytes,
}

/// What a plan does beyond the plain step, the longest first.
///
/// # Errors
///
/// If tensors are offloaded that this step cannot offload.
pub fn extra(step: &StepProfile, order: &Order) -> Result<Vec<Extra>, RecordError> {
    let linked = step.graph.linked(&order.offloaded, step.link.as_ref());
    let linked = linked.map_err(PlanError::from)?;
    let mut runs = vec![0; linked.operations.len()];
    for operation in &order.operations {
        if let Some(runs) = runs.get_mut(operation.index()) {
            *runs += 1;
        }
    }
    let waits = order.offloaded.iter().enumerate();
    let waits: HashMap<TensorId, usize> = waits.map(|(place, &one)| (one, place)).collect();
    let mut all: BTreeMap<_, Extra> = BTreeMap::new();
    let mut add = |work, stage, operation: OperationId, times, seconds, bytes| {
        let known = step.kind_of.get(operation.index());
        let known = known.and_then(|kind| step.kinds.get(*kind as usize));
        let (kind, shape) = match known {
            Some((kind, shape)) => (kind.as_str(), shape.as_slice()),
            None if linked.operation(operation).backward => ("backward", &[][..]),
            None => ("forward", &[][..]),
        };
        let extra = all.entry((work, stage, kind, shape)).or_insert(Extra {
            work,
            kind: kind.to_owned(),
            shape: shape.to_vec(),
            stage,
            count: 0,
            times: 0,
            seconds: Seconds::ZERO,
            bytes: Bytes::ZERO,
        });
        extra.count += 1;
        extra.times += times;
        extra.seconds += seconds;
        extra.bytes += bytes;
    };
    let stages = Stages::of_graph(&step.graph);
    let recorded = step.graph.operations.len();
    for stage in (0..=stages.chain().stages.len()).map(StageId) {
        for id in stages.forward(stage).chain(stages.backward(stage)) {
            let operation = linked.operation(id);
            let made = operation
                .outputs
                .iter()
                .map(|&one| linked.tensor(one).bytes);
            let again = runs[id.index()].max(1) - 1;
            if again > 0 {
                let bytes = Bytes(made.sum::<Bytes>().0 * again as u64);
                let seconds = operation.seconds * again as f64;
                add(ExtraWork::Recompute, stage, id, again, seconds, bytes);
            }
            for (tensor, place) in operation
                .outputs
                .iter()
                .filter_map(|one| waits.get_key_value(one))
            {
                let [to_host, back] = [0, 1].map(|way| recorded + 2 * place + way);
                let seconds =
                    [to_host, back].map(|one| linked.operations[one].seconds * runs[one] as f64);
                let bytes = Bytes(linked.tensor(*tensor).bytes.0 * runs[back] as u64);
                let seconds = seconds[0] + seconds[1];
                add(ExtraWork::Offload, stage, id, runs[back], seconds, bytes);
            }
        }
    }
    let mut all: Vec<Extra> = all.into_values().collect();
    all.sort_by(|a, b| b.seconds.0.total_cmp(&a.seconds.0));
    Ok(all)
}
