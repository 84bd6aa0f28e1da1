//! Plans of recomputation for training steps, a simulator of their exact costs, and planners that fit a memory budget.
//!
//! A training step can drop activations in the forward pass and recompute them in the backward pass. This crate decides
//! which ones. It is independent of any deep learning framework: a step is a [`Graph`] of operations with bytes and seconds,
//! and a plan a list of these operations, in which a recompute stands twice. A model that is known by its stages alone is a
//! [`Chain`], for which a graph is made. One simulator, [`graph::simulate`], gives the cost of every plan.
//!
//! # Map
//! | module | what it owns |
//! |---|---|
//! | [`bytes`], [`seconds`] | the two units, [`Bytes`] and [`Seconds`] |
//! | [`graph`] | [`Graph`] and [`Program`]; their simulator; [`plan_graph`] and [`plan_chain`], from a step and a request to a plan |
//! | [`chain`] | [`Chain`]: the costs of each stage; its JSON file format |
//! | [`schedule`] | [`Action`]: one action of a step over stages; lists of them, and their text form |
//! | `search` | the planner `auto`: one search over the runs of all operations |
//! | `planner` | the planners for chains, one file each: from a chain to schedules |
//! | `request` | [`Request`] and [`Planner`]: what to plan for |
//!
//! # Example
//! ```
//! use rekindle_plan::{Chain, Planner, Request, plan_chain};
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
//! let segments = |segments| {
//!     let planner = Planner::Segments(Some(segments));
//!     plan_chain(&chain, &Request::of(planner, None))
//! };
//! let (plain, halves) = (segments(1)?.simulated, segments(2)?.simulated);
//! assert!(halves.peak < plain.peak);
//! assert!(halves.time > plain.time);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![deny(missing_docs)]

// The graphs of the tests name this crate.
#[cfg(test)]
extern crate self as rekindle_plan;

pub mod bytes;
pub mod chain;
pub mod graph;
mod planner;
mod request;
pub mod schedule;
mod search;
pub mod seconds;

pub use bytes::Bytes;
pub use chain::{Chain, ChainError, LossCost, OptimizerCost, Stage};
pub use graph::{
    Graph, GraphPlan, Operation, OperationId, Parts, PlanError, Program, Simulated, Tensor,
    TensorId, chain_frontier, plan_chain, plan_graph,
};
pub use request::{Planner, Request};
pub use schedule::{Action, StageId};
pub use seconds::Seconds;

/// The same random numbers in every run.
pub(crate) fn random() -> rand_chacha::ChaCha8Rng {
    rand::SeedableRng::seed_from_u64(0)
}
