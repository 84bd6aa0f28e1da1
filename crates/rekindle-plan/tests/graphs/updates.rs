//! Updates of parameters in the backward pass: never before the last operation that reads the old value, as early as
//! that, and no gradient is held longer.
use crate::graph_support::graphs::Builder;
use rekindle_plan::graph::{
    Graph, GraphPlan, Operation, OperationId, PlanError, Program, Tensor, TensorId, plan_graph,
    simulate,
};
use rekindle_plan::{Bytes, Planner, Request};

const ACTIVATION: u64 = 10;
const WEIGHT: u64 = 40;

/// A chain of layers with a weight each, and its backward. Weights are updated by it, or their gradients are outputs.
fn chain(layers: usize, updates: bool) -> (Graph, Vec<TensorId>) {
    let mut builder = Builder::default();
    let weights: Vec<TensorId> = (0..layers).map(|_| builder.given()).collect();
    let mut values = vec![builder.given()];
    for &weight in &weights {
        let input = values[values.len() - 1];
        values.push(builder.operation(&[input, weight], ACTIVATION, 1));
    }
    let mut gradient = builder.operation(&[values[layers]], ACTIVATION, 1);
    builder.last().backward = true;
    let mut gradients = Vec::new();
    for layer in (0..layers).rev() {
        gradients.push((
            weights[layer],
            builder.operation(&[gradient, values[layer]], WEIGHT, 1),
        ));
        builder.last().backward = true;
        // Reads the weight after its gradient was made.
        gradient = builder.operation(&[gradient, weights[layer]], ACTIVATION, 1);
        builder.last().backward = true;
    }
    for (weight, gradient) in gradients {
        if !updates {
            builder.output(gradient);
            continue;
        }
        let made = builder.tensor(Tensor {
            output: true,
            ..Tensor::default()
        });
        builder.graph.operations.push(Operation {
            inputs: vec![gradient],
            outputs: vec![made],
            temp_bytes: Bytes(5),
            repeatable: false,
            backward: true,
            updates: Some(weight),
            ..Operation::default()
        });
    }
    builder.output(gradient);
    builder.graph.validate().unwrap();
    (builder.graph, weights)
}

/// Each weight is updated once, right behind the last operation that reads it, or that makes its gradient.
fn check(graph: &Graph, weights: &[TensorId], program: &Program) {
    let steps: Vec<&Operation> = program
        .operations()
        .iter()
        .map(|id| graph.operation(*id))
        .collect();
    for weight in weights {
        let updates = steps
            .iter()
            .enumerate()
            .filter(|(_, step)| step.updates == Some(*weight));
        let places: Vec<usize> = updates.map(|(place, _)| place).collect();
        let [place] = places[..] else {
            panic!("updated at {places:?}");
        };
        let read = steps.iter().rposition(|step| step.inputs.contains(weight));
        let gradient = steps[place].inputs[0];
        let before = steps[..place].iter();
        let made = before
            .rev()
            .position(|step| step.outputs.contains(&gradient));
        let after = read.unwrap().max(place - 1 - made.unwrap());
        // Other updates may stand at the same place.
        assert!(after < place);
        let between = &steps[after + 1..place];
        assert!(between.iter().all(|step| step.updates.is_some()));
    }
}

#[test]
fn gradients_go_one_by_one_in_every_plan() {
    let (after, _) = chain(12, false);
    let (graph, weights) = chain(12, true);
    let plain = simulate(&graph, &Program::recorded(&graph).unwrap());
    let waits = simulate(&after, &Program::recorded(&after).unwrap());
    // All activations but the last, a gradient, and one weight's; or all weights', and two gradients.
    assert_eq!(plain.peak, Bytes(12 * ACTIVATION + WEIGHT));
    assert_eq!(waits.peak, Bytes(12 * WEIGHT + 2 * ACTIVATION));
    let smallest = match plan_graph(&graph, &Request::within(Bytes(1))) {
        Err(PlanError::Infeasible { leanest, .. }) => leanest.simulated.peak,
        other => panic!("{other:?}"),
    };
    assert!(smallest < plain.peak);
    let mut planned = 0;
    for budget in (smallest.0..=plain.peak.0).step_by(5) {
        for planner in [Planner::Auto, Planner::Optimal, Planner::Segments(None)] {
            let request = Request::of(planner, Some(Bytes(budget)));
            match plan_graph(&graph, &request) {
                Ok(plan) => {
                    assert!(plan.simulated.peak.0 <= budget);
                    check(&graph, &weights, &plan.program);
                    planned += usize::from(plan.simulated.repeated > 0);
                }
                Err(PlanError::Infeasible { .. }) => {}
                Err(error) => panic!("{planner}: {error}"),
            }
        }
    }
    assert!(planned > 10, "{planned}");
}

#[test]
fn nothing_reads_what_was_updated() {
    let (graph, _) = chain(2, true);
    let recorded = Program::recorded(&graph).unwrap();
    let mut list: Vec<OperationId> = recorded.operations().to_vec();
    let update = list
        .iter()
        .position(|id| graph.operation(*id).updates.is_some())
        .unwrap();
    // One step earlier the gradient of the layer's input still reads the weight.
    list.swap(update - 1, update);
    let refused = Program::new(&graph, list).unwrap_err().to_string();
    assert!(refused.ends_with("which was updated before"), "{refused}");
}

/// A plan's file may hold anything.
#[test]
fn a_list_with_an_early_update_or_an_unknown_operation_is_refused() {
    let (graph, _) = chain(3, true);
    let recorded = Program::recorded(&graph).unwrap().operations().to_vec();
    let said = |operations| {
        let plan = GraphPlan::of_operations(&graph, None, operations, Vec::new());
        plan.unwrap_err().to_string()
    };
    let last = recorded.len() - 1;
    let is_update = |id: &OperationId| graph.operation(*id).updates.is_some();
    let first = recorded.iter().position(is_update).unwrap();
    let read = |id: &OperationId| {
        let updated = graph.operation(recorded[first]).updates;
        let inputs = &graph.operation(*id).inputs;
        updated.is_some_and(|weight| inputs.contains(&weight))
    };
    let reads = recorded.iter().rposition(read).unwrap();
    let mut early = recorded.clone();
    early[reads..=first].rotate_right(1);
    assert!(said(early).contains("was updated before"));
    let mut unknown = recorded;
    unknown[last] = OperationId(1000);
    assert!(said(unknown).contains("runs operation 1000, but there are"));
}
