//! From a recording to a plan inside a budget: shapes, measurement, program.
//!
//! 1. From shapes alone a first program is found, the leanest where the plain order may not fit.
//! 2. It runs a few times, and every operation is measured.
//! 3. The measured graph is planned for the budget, less all that the process holds besides.

use std::{sync::Arc, time::Duration};

use burn::{
    module::Module,
    optim::ModuleOptimizer,
    tensor::{DType, Device, DispatchTensor, Shape},
};
use rekindle_plan::{
    Bytes,
    graph::{
        Graph, GraphPlan, GraphPlanError, GraphPlanner, GraphRequest, Program, plan_graph,
        simulate, smallest_program,
    },
};

use super::{
    RecordError,
    measure::Costs,
    optimizer,
    program::prepare,
    recording::Recording,
    step::{Planned, started},
};
use crate::{executor::Room, meter::Meter};

/// Passes over the program that count, after one that warms up.
const PASSES: usize = 2;

/// Share of a budget that the plain order must fit in, by shapes alone, to be what is measured: temporary bytes are not
/// known yet.
const SURELY: f64 = 0.8;

/// What an interpreter's tables take for each tensor that it is given.
const GIVEN_BYTES: u64 = 256;

/// How often the plan is made again because it takes memory itself.
const ROUNDS: usize = 3;

/// What is wanted of a plan.
pub(super) struct Planning {
    pub(super) budget: Option<Bytes>,
    pub(super) planner: GraphPlanner,
    pub(super) input_gradients: bool,
    pub(super) optimizer: Option<ModuleOptimizer>,
    pub(super) meter: Arc<dyn Meter>,
    pub(super) device: Device,
    pub(super) check: bool,
    /// Keeps pools within the budget.
    pub(super) room: Option<Arc<Room>>,
}

impl Planning {
    pub(super) fn room(&self) -> Option<&Room> {
        self.room.as_deref()
    }

    fn in_use(&self) -> Bytes {
        self.meter.read().in_use_bytes
    }

    /// What the device loses beside live buffers: the driver's context, padding, and one tensor that a queue frees
    /// late.
    fn beside_buffers(&self, graph: &Graph) -> Bytes {
        if self.meter.read().reserved_bytes.is_none() {
            return Bytes::ZERO;
        }
        const PADDING_BYTES: u64 = 512;
        let largest = graph.tensors.iter().filter(|tensor| !tensor.given);
        let largest = largest.map(|tensor| tensor.bytes).max().unwrap_or_default();
        self.meter.context_bytes() + largest + Bytes(graph.tensors.len() as u64 * PADDING_BYTES / 2)
    }
}

/// A plan for a recording.
pub(super) fn planned<M: Module, A>(
    planning: &Planning,
    model: &M,
    auxiliary: A,
    recording: Recording,
    given: Vec<(usize, DispatchTensor)>,
    shapes: Vec<(Shape, DType)>,
    record_time: Duration,
) -> Result<Planned<A>, RecordError> {
    let meter = &*planning.meter;
    let budget = planning.budget.unwrap_or(Bytes::MAX);
    let costs = {
        let first = first_program(&recording, planning.in_use(), budget)?;
        let start = || match started(&recording, given.clone()) {
            Ok(interpreter) => interpreter,
            Err(error) => panic!("{error}"),
        };
        drop(started(&recording, given.clone())?);
        Costs::measured(&recording, &first, PASSES, start, &planning.device, meter)
    };
    let optimizer = planning.optimizer.as_ref();
    let optimizer = optimizer.map(|one| optimizer::measured(model, one, meter));
    let optimizer = optimizer.unwrap_or_default();
    drop(given);

    let constants: u64 = recording.constants.iter().map(|(tensor, _)| recording.value_bytes(*tensor)).sum();
    let tables = recording.given().count() as u64 * GIVEN_BYTES;
    let own = Bytes(constants + tables);
    let mut round = 0;
    let mut taken_by_plan = Bytes::ZERO;
    loop {
        let base = planning.in_use() + taken_by_plan;
        let mut graph = costs.graph(&recording, Bytes::ZERO);
        let beside = planning.beside_buffers(&graph);
        graph.fixed_bytes = base + own + optimizer.state + beside;
        let gradients: Bytes = recording
            .parameters
            .iter()
            .filter_map(|parameter| Some(graph.tensors[parameter.gradient?].bytes))
            .sum();
        let updating = base + beside + optimizer.state + gradients + optimizer.temp;
        let request = GraphRequest {
            budget: planning.budget,
            planner: planning.planner,
            ..GraphRequest::default()
        };
        let plan = match plan_graph(&graph, &request) {
            Ok(plan) if updating <= budget => plan,
            Ok(plan) => {
                return Err(RecordError::Infeasible {
                    budget,
                    smallest: updating.max(plan.simulated.peak),
                });
            }
            Err(GraphPlanError::Infeasible { smallest, .. }) => {
                return Err(RecordError::Infeasible {
                    budget,
                    smallest: smallest.max(updating),
                });
            }
            Err(error) => return Err(RecordError::Capture(error.to_string())),
        };
        let plain = Program::recorded(&graph).map_err(|error| RecordError::Capture(error.to_string()))?;
        let plain = simulate(&graph, &plain);
        let before = planning.in_use();
        let GraphPlan {
            program,
            simulated,
            planner,
            ..
        } = plan;
        let prepared = prepare(&recording, &program);
        let needs = program.operations().iter().map(|one| {
            let operation = graph.operation(*one);
            let outputs = operation.outputs.iter().map(|tensor| graph.tensor(*tensor).bytes);
            outputs.sum::<Bytes>() + operation.temp_bytes
        });
        let needs = needs.collect();
        let predicted_peak = simulated.peak.max(updating);
        let held = planning.in_use();
        // On the processor a plan takes of the memory that it plans.
        let grown = held - base.max(before.min(held));
        round += 1;
        if predicted_peak + (held - base) > budget && round < ROUNDS {
            taken_by_plan += grown.max(held - base);
            continue;
        }
        return Ok(Planned {
            shapes,
            auxiliary,
            prepared,
            program,
            planner,
            needs,
            record_time,
            base: held,
            optimizer_state: optimizer.state,
            predicted_peak: predicted_peak + (held - base),
            plain_peak: plain.peak.max(updating),
            plain_time: plain.time,
            simulated,
            graph,
            recording,
        });
    }
}

/// What is measured: the plain order where it surely fits, else the leanest program.
fn first_program(
    recording: &Recording,
    in_use: Bytes,
    budget: Bytes,
) -> Result<Program, RecordError> {
    let graph = Costs::from_shapes(recording).graph(recording, in_use);
    let wrong = |error: &dyn std::fmt::Display| RecordError::Capture(error.to_string());
    let plain = Program::recorded(&graph).map_err(|error| wrong(&error))?;
    let peak = simulate(&graph, &plain).peak;
    if (peak.0 as f64) <= budget.0 as f64 * SURELY {
        return Ok(plain);
    }
    let (leanest, _) = smallest_program(&graph).map_err(|error| wrong(&error))?;
    Ok(leanest)
}
