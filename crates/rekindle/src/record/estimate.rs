//! What a training step needs, from shapes alone: for a model of any size, on any machine.
//!
//! The model is made on the recording device, so that no weight and no activation is ever allocated. Known are the
//! bytes of all tensors and when each is live; not known is what kernels need while they run, and what a device's pools
//! add. [`Recorded::within`](super::Recorded::within) measures those.

use burn::{module::Module, tensor::Device};
use rekindle_plan::{
    Bytes, Seconds,
    graph::{
        ExchangeCost, Exchanged, GraphPlanner, GraphRequest, Program, Ring, Timetable, plan_graph,
        simulate, smallest_program,
    },
};

use super::{
    RecordError,
    agreement::{buckets, on_network, order},
    bridge::{self, StepResult},
    measure::Costs,
    operation::flops,
    planning::timetable,
    recording::Recording,
    update::Update,
};
use crate::{activation::Activation, reduce::fullest_share};

/// What a training step needs, by its shapes.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// Numbers that train and that do not.
    pub trainable: u64,
    /// Numbers held that do not train: frozen parameters, running statistics.
    pub frozen: u64,
    /// All that the module holds.
    pub parameter_bytes: Bytes,
    /// Gradients of all parameters that train.
    pub gradient_bytes: Bytes,
    /// The batch and constants.
    pub input_bytes: Bytes,
    /// Most bytes of the plain step, without an optimizer's state: parameters, batch, gradients, live activations.
    pub plain_peak: Bytes,
    /// The operation at which it stands, and whether that is in the backward pass.
    pub peak_at: (String, bool),
    /// The smallest budget that a plan was found for.
    pub smallest_peak: Bytes,
    /// Operations on numbers in the plain step.
    pub flops: f64,
    /// Number of operations.
    pub operations: usize,
    /// By the module's parts, in order.
    pub layers: Vec<LayerEstimate>,
    graph: rekindle_plan::graph::Graph,
    work: Vec<f64>,
    /// When the plain step hands its gradients over, and their buckets.
    exchange: (Timetable, Vec<Vec<(usize, Bytes)>>),
    /// Numbers and bytes of each parameter that trains.
    trained: Vec<(usize, Bytes)>,
}

/// One part of the module that holds parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerEstimate {
    /// Where the module has it: `layers.1`.
    pub path: String,
    /// Numbers that it holds.
    pub parameters: u64,
    /// Whether any of them trains.
    pub trains: bool,
}

/// What a training step needs, for a model and a batch that `make` makes on the device that it is given. Nothing is
/// allocated and nothing computed.
///
/// ```
/// use burn::{nn::{Linear, LinearConfig}, prelude::*};
///
/// let make = |device: &Device| {
///     let model: Vec<Linear> = (0..48).map(|_| LinearConfig::new(8192, 8192).init(device)).collect();
///     (model, Tensor::<2>::empty([65_536, 8192], device))
/// };
/// let estimate = rekindle::estimate(make, |model: &Vec<Linear>, input| {
///     let output = model.iter().fold(input, |x, layer| layer.forward(x));
///     output.powf_scalar(2.0).mean()
/// })?;
/// assert_eq!(estimate.trainable, 48 * (8192 * 8192 + 8192));
/// assert!(estimate.smallest_peak < estimate.plain_peak);
/// # Ok::<(), rekindle::record::RecordError>(())
/// ```
///
/// # Errors
///
/// As [`record`](super::record).
pub fn estimate<M, I, R>(
    make: impl FnOnce(&Device) -> (M, I),
    step: impl Fn(&M, I) -> R,
) -> Result<Estimate, RecordError>
where
    M: Module,
    I: Activation,
    R: StepResult,
{
    estimate_updating(Update::After, make, step)
}

/// As [`estimate()`], of a step that updates its parameters when `update` says.
///
/// # Errors
///
/// As [`record`](super::record).
pub fn estimate_updating<M, I, R>(
    update: Update,
    make: impl FnOnce(&Device) -> (M, I),
    step: impl Fn(&M, I) -> R,
) -> Result<Estimate, RecordError>
where
    M: Module,
    I: Activation,
    R: StepResult,
{
    let (recording, _) = Recording::new(bridge::take_made(make, step)?, update);
    Estimate::of(&recording)
}

impl Estimate {
    pub(super) fn of(recording: &Recording) -> Result<Self, RecordError> {
        let wrong = |error: &dyn std::fmt::Display| RecordError::Capture(error.to_string());
        let numbers = |tensor: usize| recording.tensors.shape(tensor).num_elements() as u64;
        let bytes = |tensor: usize| Bytes(recording.tensors.value_bytes(tensor));
        let of = |trains: bool| {
            let parameters = recording.parameters.iter();
            let parameters = parameters.filter(move |one| one.trains == trains);
            parameters.map(|one| numbers(one.tensor)).sum()
        };
        let parameter_bytes = recording
            .parameters
            .iter()
            .map(|one| bytes(one.tensor))
            .sum();
        let trained = recording.parameters.iter().filter(|one| one.trains);
        let constants = recording.constants.iter().map(|(tensor, _)| *tensor);
        let input_bytes = recording
            .inputs
            .iter()
            .copied()
            .chain(constants)
            .map(bytes)
            .sum();
        let fixed = parameter_bytes + input_bytes;
        let graph = Costs::from_shapes(recording).graph(recording, fixed);
        let plain = Program::recorded(&graph).map_err(|error| wrong(&error))?;
        let timetable = timetable(recording, &graph, &plain);
        let buckets = buckets(recording, order(recording, &timetable));
        let plain = simulate(&graph, &plain);
        let smallest = smallest_program(&graph, None).map_err(|error| wrong(&error))?;
        let at = recording.operations.iter().nth(plain.peak_step);
        let kinds = recording.operations.kinds().iter();
        let work_of: Vec<f64> = kinds
            .map(|kind| flops(&kind.name, &kind.operation))
            .collect();
        let kinds = recording.operations.kind_numbers();
        let work: Vec<f64> = kinds.map(|kind| work_of[kind as usize]).collect();
        Ok(Self {
            trainable: of(true),
            frozen: of(false),
            parameter_bytes,
            gradient_bytes: trained.map(|one| bytes(one.tensor)).sum(),
            input_bytes,
            plain_peak: plain.peak,
            peak_at: at.map_or_else(Default::default, |one| {
                (one.kind.name.clone(), one.backward)
            }),
            smallest_peak: smallest.simulated.peak,
            flops: work.iter().sum(),
            operations: recording.operations.len(),
            layers: layers(recording),
            graph,
            work,
            exchange: (timetable, on_network(&buckets)),
            trained: recording.trained().collect(),
        })
    }

    /// What the fastest plan within `budget` costs: its peak, and the plain step's operations on numbers times this
    /// factor. `None` where no plan fits.
    ///
    /// # Errors
    ///
    /// If the recording breaks a rule of its own.
    pub fn within(&self, budget: Bytes) -> Result<Option<(Bytes, f64)>, RecordError> {
        let request = GraphRequest {
            budget: Some(budget),
            planner: GraphPlanner::Auto,
            ..GraphRequest::default()
        };
        let plan = match plan_graph(&self.graph, &request) {
            Ok(plan) => plan,
            Err(rekindle_plan::graph::GraphPlanError::Infeasible { .. }) => return Ok(None),
            Err(error) => return Err(RecordError::Capture(error.to_string())),
        };
        // Updates come after the recorded operations, and do as much work in every plan.
        let operations = plan.program.operations().iter();
        let work: f64 = operations
            .filter_map(|one| self.work.get(one.index()))
            .sum();
        Ok(Some((plan.simulated.peak, work / self.flops.max(1.0))))
    }

    /// Parameters of the rank that keeps most, as numbers, where so many ranks share them [out](crate::reduce::Shards).
    #[must_use]
    pub fn fullest_share(&self, ranks: usize) -> u64 {
        let sizes: Vec<usize> = self.trained.iter().map(|one| one.0).collect();
        fullest_share(&sizes, ranks) as u64
    }

    /// What the plain step computes on a device that does so many operations on numbers in a second, and what the exchange
    /// over a ring of ranks takes beside that, whose optimizer is sharded or not. Copies between device and network are not
    /// counted.
    #[must_use]
    pub fn on_ranks(&self, ring: Ring, flops_per_s: f64, sharded: bool) -> (Seconds, Exchanged) {
        let (timetable, buckets) = &self.exchange;
        let cost = ExchangeCost {
            ring,
            broadcast: None,
            take_s_per_byte: 0.0,
            return_s_per_byte: 0.0,
        };
        let computing = Seconds(self.flops / flops_per_s);
        let timetable = timetable.scaled(computing.0 / timetable.computing.0);
        let sent = self.trained.iter().filter(|_| sharded).map(|one| one.1);
        (computing, cost.simulate(&timetable, buckets, sent))
    }
}

/// The parts of a module that hold parameters of their own.
fn layers(recording: &Recording) -> Vec<LayerEstimate> {
    let mut layers: Vec<LayerEstimate> = Vec::new();
    for parameter in &recording.parameters {
        let path = parameter.path.rsplit_once('.').map_or("", |(path, _)| path);
        let numbers = recording.tensors.shape(parameter.tensor).num_elements() as u64;
        match layers.last_mut() {
            Some(last) if last.path == path => {
                last.parameters += numbers;
                last.trains |= parameter.trains;
            }
            _ => layers.push(LayerEstimate {
                path: path.to_owned(),
                parameters: numbers,
                trains: parameter.trains,
            }),
        }
    }
    layers
}
