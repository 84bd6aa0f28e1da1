//! Recompute schedules for chains of stages, a simulator for their exact costs, and planners that fit a memory budget.
//!
//! A training step of a sequential model can drop activations in the forward pass and recompute them in the backward
//! pass. This crate decides which ones. It is independent of any deep learning framework: a model is a [`Chain`] of
//! bytes and seconds.
//!
//! # Map
//! | module | what it owns |
//! |---|---|
//! | [`bytes`], [`seconds`] | the two units, [`Bytes`] and [`Seconds`] |
//! | [`chain`] | [`Chain`]: the costs of each stage; its JSON file format |
//! | [`action`] | [`Action`]: one action of a step over stages |
//! | [`schedule`] | [`Schedule`]: a list of actions, what each keeps, and its text form |
//! | [`simulator`] | [`simulate`]: the peak, time and counts of a schedule on a chain, in exact bytes |
//! | [`planner`] | the planners, one file each |
//! | `request` | [`Request`] and [`Planner`]: what to plan for |
//! | [`plan`](mod@plan) | [`Plan`] |
//! | `planning` | [`plan()`]: from a chain and a request to a plan; [`frontier()`]: the memory/time frontier |
//! | [`graph`] | planning for any training step, given as operations on tensors |
//!
//! # Example
//! ```
//! use rekindle_plan::{Chain, planner, simulate};
//!
//! let chain = Chain::from_json(
//!     r#"{"format": "rekindle-chain/1", "input_bytes": 3,
//!         "stages": [
//!           {"name": "a", "forward_s": 7, "backward_s": 14, "output_bytes": 5, "saved_bytes": 11,
//!            "forward_temp_bytes": 2, "backward_temp_bytes": 3},
//!           {"name": "b", "forward_s": 6, "backward_s": 12, "output_bytes": 4, "saved_bytes": 9,
//!            "forward_temp_bytes": 2, "backward_temp_bytes": 3}],
//!         "loss": {"forward_s": 0, "backward_s": 0, "forward_temp_bytes": 0, "backward_temp_bytes": 1}}"#,
//! )?;
//! let plain = simulate(&chain, &planner::none(2)?);
//! let halves = simulate(&chain, &planner::uniform(2, 2)?);
//! assert!(halves.peak < plain.peak);
//! assert!(halves.time > plain.time);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod action;
pub mod bytes;
pub mod chain;
pub mod graph;
pub mod plan;
pub mod planner;
mod planning;
mod request;
pub mod schedule;
pub mod seconds;
pub mod simulator;

pub use action::{Action, StageId};
pub use bytes::Bytes;
pub use chain::{Chain, ChainError, LossCost, OptimizerCost, Stage};
pub use graph::{
    Graph, GraphPlan, GraphPlanError, Operation, OperationId, Program, ProgramError, Simulated,
    Tensor, TensorId, plan_graph, smallest_program,
};
pub use plan::{Plan, keep_useful};
pub use planner::{PlanError, PlanSource, Slots, smallest_peak};
pub use planning::{frontier, plan};
pub use request::{Planner, PlannerParseError, Request};
pub use schedule::Schedule;
pub use seconds::Seconds;
pub use simulator::{Parts, Simulation, simulate};
