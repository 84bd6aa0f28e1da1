//! Plans recomputation for any training step that is given as a list of operations on tensors.
//!
//! A [`Graph`] is one recorded training step: operations in the order in which they were recorded, and the size of
//! every tensor. A [`Program`] is a list of the same operations in the order in which they run; an operation that
//! occurs twice is recomputed. A tensor's value lives from the operation that makes it to its last use before it is
//! made again, so the list alone determines what is held at every moment, and [`simulate`] computes the exact peak and
//! time. Nothing here assumes a chain: skips, several inputs and shared parameters are ordinary edges.
//!
//! The formulation is that of Jain et al. 2020 (Checkmate, arXiv 1910.02653): which operations run before each
//! operation of the step, and what is kept in between. They solve it as an integer program. This crate uses a local search
//! (`search`), because a step of thousands of operations must be planned in a second.
//!
//! # Example
//! ```
//! use rekindle_plan::graph::{Graph, Operation, Program, Tensor, TensorId, plan_graph, simulate};
//! use rekindle_plan::{Bytes, Request, Seconds};
//!
//! // Three layers, and a backward that reads their inputs: 0 is given, 1 to 3 are activations, 4 to 6 gradients.
//! let tensor = |id| Tensor { bytes: Bytes(100), given: id == 0, output: id == 6, ..Tensor::default() };
//! let operation = |inputs: &[u32], output, backward| Operation {
//!     inputs: inputs.iter().map(|&id| TensorId(id)).collect(),
//!     outputs: vec![TensorId(output)],
//!     seconds: Seconds(1.0),
//!     backward,
//!     ..Operation::default()
//! };
//! let graph = Graph {
//!     tensors: (0..7).map(tensor).collect(),
//!     operations: vec![
//!         operation(&[0], 1, false),
//!         operation(&[1], 2, false),
//!         operation(&[2], 3, false),
//!         operation(&[3, 2], 4, true),
//!         operation(&[4, 1], 5, true),
//!         operation(&[5, 0], 6, true),
//!     ],
//!     fixed_bytes: Bytes(0),
//! };
//! let recorded = simulate(&graph, &Program::recorded(&graph)?);
//! assert_eq!((recorded.peak, recorded.time), (Bytes(400), Seconds(6.0)));
//! let plan = plan_graph(&graph, &Request::within(Bytes(300)))?;
//! assert_eq!(plan.simulated.peak, Bytes(300));
//! // The first layer runs twice.
//! assert_eq!(plan.simulated.time, Seconds(7.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod borders;
mod exchange;
mod link;
mod plan;
mod program;
mod simulator;
mod spans;
mod staged;
mod stages;
mod step;
mod storages;
mod validate;

pub use borders::{Border, borders};
pub use exchange::{ExchangeCost, Exchanged, Ring, Timetable};
pub use link::{Link, Rate};
pub use plan::{GraphPlan, PlanError, plan_graph};
pub use program::Program;
pub use simulator::{Moment, Parts, Simulated, simulate};
pub use spans::{Change, Span, SpanPass, changes, held};
pub use staged::{chain_frontier, plan_chain};
pub use stages::Stages;
pub use step::{Graph, Operation, OperationId, Tensor, TensorId, Transfer};
pub use validate::GraphError;
