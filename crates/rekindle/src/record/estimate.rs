//! Estimates the memory of a training step from shapes alone, for a model of any size, on any machine.
//!
//! The model is created on the recording device, so no weight and no activation is ever allocated. The estimate knows
//! the bytes of all tensors, when each is live, and the additional memory of [kernels](Kernels). It does not know the
//! overhead of a device's pools. [`Recorded::within`](super::Recorded::within) measures that.

use std::collections::HashMap;

use burn::{module::Module, tensor::Device};
use rekindle_plan::{
    Bytes, Chain, OptimizerCost, Seconds,
    graph::{Stages, simulate},
};

use super::{
    Kernels, RecordError, bridge,
    cost::Costs,
    optimizer::tried,
    profile::{StepProfile, kinds},
    program::plain_order,
    recording::Recording,
    staged::{marks, named},
    update::Update,
    update_costs::UpdateCosts,
};
use crate::{step_result::StepResult, tensor_tree::TensorTree};

/// Bytes on the host for each parameter besides its numbers, in the module and in burn's graph, and for each operation, in
/// the recording and the plan. Observed on the CPU backend: with what the program holds for each stage, they explain the
/// plain peaks of `linear-1000`, `deep-linear` and stacks of 1 and 100 layers to 0.1 MB, and that of `gpt` to 0.3 MB.
const PARAMETER_BYTES: u64 = 920;
const OPERATION_BYTES: u64 = 320;

/// Assumptions that affect a step's memory besides its operations.
#[derive(Clone, Copy)]
pub struct Assumed<'a> {
    /// When the step updates its parameters.
    pub update: Update,
    /// The kernels that run its operations.
    pub kernels: Kernels,
    /// The optimizer's cost for a parameter, given its number of elements, and whether the first two dimensions of its gradient
    /// are exchanged in memory.
    pub optimizer: &'a dyn Fn(u64, bool) -> OptimizerCost,
    /// Bytes used temporarily between steps, when there are no gradients, given the number of parameters and statistics
    /// and of elements of the largest: copies in which they are saved, for example.
    pub between: &'a dyn Fn(usize, u64) -> Bytes,
    /// Bytes held permanently besides parameters, batch and the optimizer's state.
    pub held: Bytes,
    /// [Parts of a batch](crate::accumulate) that run one after the other; the step is that of one.
    pub parts: usize,
    /// `Some` if the process that trains records the step before and tries the optimizer, in memory that counts, `Some(true)`
    /// if it evaluates the model before that. The [counting allocator](rekindle_alloc::CountingAllocator) measures recording.
    pub begins: Option<bool>,
}

impl Default for Assumed<'_> {
    /// No update of parameters, no additional memory of kernels.
    fn default() -> Self {
        Self {
            update: Update::After,
            kernels: Kernels::Device,
            optimizer: &|_, _| OptimizerCost::default(),
            between: &|_, _| Bytes::ZERO,
            held: Bytes::ZERO,
            parts: 1,
            begins: None,
        }
    }
}

/// The estimated memory of a training step.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// Number of trained elements.
    pub trainable: u64,
    /// Number of elements that are not trained: frozen parameters, running statistics.
    pub frozen: u64,
    /// Bytes of all tensors of the module.
    pub parameter_bytes: Bytes,
    /// Bytes of the gradients of all trained parameters.
    pub gradient_bytes: Bytes,
    /// Bytes that are held between parts of a batch: the `f32` sum of their gradients, and auxiliary outputs.
    pub between_parts_bytes: Bytes,
    /// Bytes of the batch and of constants.
    pub input_bytes: Bytes,
    /// Bytes of the optimizer's state.
    pub state_bytes: Bytes,
    /// Peak of the plain step, its update included.
    pub plain_peak: Bytes,
    /// The largest tensor: its description, whether it is a parameter or the gradient of one, and its bytes.
    pub largest: (String, bool, Bytes),
    /// Number of operations.
    pub operations: usize,
    /// The input for [plans](StepProfile::plan).
    pub profile: StepProfile,
    /// The step as a chain of stages, divided between the layers of a [`Sequential`](crate::Sequential), or where few
    /// bytes cross the forward pass.
    pub chain: Chain,
    /// For each stage, its index among the marks of a [`Sequential`](crate::Sequential)'s layers.
    pub marks: Vec<Option<usize>>,
}

/// Estimates a training step for the model and the batch that `make` creates on the given device. Nothing is allocated
/// and nothing is computed. What the training holds besides the step is `assumed`.
///
/// ```
/// use burn::{nn::{Linear, LinearConfig}, prelude::*};
/// use rekindle::{plan::{Bytes, Planner}, record::Assumed};
///
/// let make = |device: &Device| {
///     let model: Vec<Linear> = (0..48).map(|_| LinearConfig::new(8192, 8192).init(device)).collect();
///     (model, Tensor::<2>::empty([65_536, 8192], device))
/// };
/// let estimate = rekindle::estimate(Assumed::default(), make, |model: &Vec<Linear>, input| {
///     let output = model.iter().fold(input, |x, layer| layer.forward(x));
///     output.powf_scalar(2.0).mean()
/// })?;
/// assert_eq!(estimate.trainable, 48 * (8192 * 8192 + 8192));
/// let budget = Bytes(estimate.plain_peak.0 / 2);
/// let plan = estimate.profile.plan(Some(budget), Planner::Auto)?;
/// assert!(plan.predicted_peak <= budget && plan.repeated > 0);
/// # Ok::<(), rekindle::record::RecordError>(())
/// ```
///
/// # Errors
///
/// See [`record`](super::record).
pub fn estimate<M, I, R>(
    assumed: Assumed<'_>,
    make: impl FnOnce(&Device) -> (M, I),
    step: impl Fn(&M, I) -> R,
) -> Result<Estimate, RecordError>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
{
    let before = rekindle_alloc::in_use();
    rekindle_alloc::reset_peak();
    let (recording, _) = bridge::take_made(make, step, assumed.update)?;
    let recorded = Bytes(rekindle_alloc::peak().saturating_sub(before) as u64);
    Estimate::of(&recording, recorded, assumed)
}

impl Estimate {
    fn of(
        recording: &Recording,
        recorded: Bytes,
        assumed: Assumed<'_>,
    ) -> Result<Self, RecordError> {
        let numbers = |tensor: usize| recording.tensors.shape(tensor).num_elements() as u64;
        let bytes = |tensor: usize| Bytes(recording.tensors.value_bytes(tensor));
        let parameters = || recording.parameters.iter().map(|one| one.tensor);
        let trainable: u64 = recording.trained().map(|one| one.0 as u64).sum();
        let parameter_bytes: Bytes = parameters().map(bytes).sum();
        let input_bytes = recording.given().map(bytes).sum::<Bytes>() - parameter_bytes;
        let updates = updates(recording, assumed.optimizer);
        let mut optimizer = updates.together(assumed.update, recording);
        let mut costs = Costs::of_kernels(recording, assumed.kernels);
        costs.updates = updates;
        let [of_parts, of_sum] = recording.of_parts(assumed.parts);
        let first = parameter_bytes + input_bytes + assumed.held + of_parts;
        let mut graph = costs.graph(recording, first + optimizer.state_bytes);
        if costs.updates.keeps_storage {
            graph.fixed_bytes += recording.beside_gradients(&graph);
        }
        let plain = plain_order(&graph)?;
        graph.fixed_bytes += match assumed.kernels {
            Kernels::Host { .. } => {
                let parameters = PARAMETER_BYTES * recording.parameters.len() as u64;
                let operations = OPERATION_BYTES * recording.operations.len() as u64;
                Bytes(parameters + operations) + costs.beside_tensors(recording, &plain)
            }
            Kernels::Device => Bytes::ZERO,
        };
        let plain = simulate(&graph, &plain);
        let left = plain.resident.last().copied().unwrap_or(graph.fixed_bytes);
        let largest = parameters().map(numbers).max().unwrap_or_default();
        let between = (assumed.between)(recording.parameters.len(), largest);
        let gradients = left - graph.fixed_bytes;
        let begun = first + recorded.max(tried_bytes(recording, assumed.optimizer));
        let kept = |evaluates| Bytes(u64::from(evaluates) * costs.scratch_bytes);
        let begun = assumed.begins.map(|evaluates| begun + kept(evaluates));
        let apart = (between - gradients).max(begun.unwrap_or_default() - left);
        optimizer.temp_bytes = optimizer.temp_bytes.max(apart).max(of_sum);
        let update_bytes = left + optimizer.temp_bytes;
        let stages = Stages::of_graph(&graph);
        let chain = Chain {
            optimizer,
            ..named(&graph, recording, &stages)
        };
        let (largest, largest_bytes) = recording.largest().unwrap_or_default();
        let (kinds, kind_of) = kinds(recording);
        let each = recording.parameters.iter();
        let mut weights = each.flat_map(|one| [Some(one.tensor), one.gradient]);
        Ok(Self {
            trainable,
            frozen: parameters().map(numbers).sum::<u64>() - trainable,
            parameter_bytes,
            gradient_bytes: recording.trained().map(|one| one.1).sum(),
            between_parts_bytes: of_parts,
            input_bytes,
            state_bytes: optimizer.state_bytes,
            plain_peak: plain.peak.max(update_bytes),
            largest: (
                recording.describe(largest),
                weights.any(|one| one == Some(largest)),
                largest_bytes,
            ),
            operations: recording.operations.len(),
            marks: marks(&graph, &stages),
            chain,
            profile: StepProfile {
                graph,
                update_bytes,
                beside_buffers_bytes: Bytes::ZERO,
                link: None,
                autodiff_s: Seconds(0.0),
                kinds,
                kind_of,
                recording: recording.fingerprint(),
            },
        })
    }
}

/// The cost of updating each parameter, by the optimizer's rule. One that copies only gradients with exchanged dimensions makes
/// its state in the storage of the others.
fn updates(recording: &Recording, optimizer: &dyn Fn(u64, bool) -> OptimizerCost) -> UpdateCosts {
    let trained = recording.parameters.iter().filter(|one| one.trains);
    let each = trained.map(|one| {
        let numbers = recording.tensors.shape(one.tensor).num_elements() as u64;
        let costs = [false, true].map(|turned| optimizer(numbers, turned));
        (one.id, costs)
    });
    let each: HashMap<_, _> = each.collect();
    let keeps = |[one, turned]: &[OptimizerCost; 2]| {
        turned.temp_bytes > one.temp_bytes && one.state_bytes > Bytes::ZERO
    };
    UpdateCosts {
        keeps_storage: each.values().any(keeps),
        each: each.into(),
        ..UpdateCosts::default()
    }
}

/// The most that trying the optimizer takes: a part of a parameter and its gradient, and what its update takes of them.
fn tried_bytes(recording: &Recording, optimizer: &dyn Fn(u64, bool) -> OptimizerCost) -> Bytes {
    let trained = recording.parameters.iter().filter(|one| one.trains);
    let each = trained.map(|one| {
        let shape = recording.tensors.shape(one.tensor);
        let number = recording.tensors.dtype(one.tensor).size();
        let (_, times) = tried(shape, number);
        let part = (shape.num_elements() as f64 / times) as u64;
        let cost = optimizer(part, shape.num_dims() > 1);
        Bytes(2 * part * number as u64) + cost.state_bytes + cost.temp_bytes
    });
    each.max().unwrap_or_default()
}
