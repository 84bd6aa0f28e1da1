//! What the tests of graphs share: graphs to plan, a second simulator and an exhaustive search.
#![allow(
    dead_code,
    reason = "every test binary includes this and uses a part of it"
)]

pub mod exhaustive;
pub mod graphs;
pub mod naive;

use rekindle_plan::{Bytes, Graph, GraphPlan, PlanError, Request, TensorId, plan_graph};

/// The numbers of all tensors.
pub fn tensor_ids(graph: &Graph) -> impl Iterator<Item = TensorId> + use<> {
    (0..graph.tensors.len() as u32).map(TensorId)
}

/// The plan with the smallest peak that is found.
pub fn leanest(graph: &Graph) -> GraphPlan {
    let nothing = Request::within(Bytes::ZERO);
    match plan_graph(graph, &nothing) {
        Ok(plan) => plan,
        Err(PlanError::Infeasible { leanest, .. }) => *leanest,
        Err(error) => panic!("{error}"),
    }
}
