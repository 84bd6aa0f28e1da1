//! Programs and their simulator, on graphs small enough to count by hand.
use crate::graph_support::graphs::Builder;
use rekindle_plan::Bytes;
use rekindle_plan::graph::{Graph, OperationId, Program, Tensor, TensorId, simulate};

fn ids(numbers: &[u32]) -> Vec<OperationId> {
    numbers.iter().map(|&number| OperationId(number)).collect()
}

fn resident(graph: &Graph, numbers: &[u32]) -> (u64, Vec<u64>) {
    let run = simulate(graph, &Program::new(graph, ids(numbers)).unwrap());
    (
        run.peak.0,
        run.resident.iter().map(|bytes| bytes.0).collect(),
    )
}

/// 0 (given) -> 1 -> 2 -> 3 (output), and 3 also reads 1.
fn diamond() -> Graph {
    let mut builder = Builder::default();
    let given = builder.given();
    let one = builder.operation(&[given], 10, 1);
    let two = builder.operation(&[one], 20, 2);
    let three = builder.operation(&[two, one], 5, 4);
    builder.output(three);
    builder.graph.fixed_bytes = Bytes(100);
    builder.graph
}

#[test]
fn a_value_lives_to_its_last_use() {
    let graph = diamond();
    assert_eq!(resident(&graph, &[0, 1, 2]), (135, vec![110, 130, 105]));
}

#[test]
fn a_value_that_is_made_again_dies_at_its_last_use_before() {
    let graph = diamond();
    let program = Program::new(&graph, ids(&[0, 1, 0, 2])).unwrap();
    let run = simulate(&graph, &program);
    assert_eq!(program.frees(1), [TensorId(1)]);
    assert_eq!(program.frees(2), []);
    assert_eq!((run.repeated, run.time.0), (1, 8.0));
    assert_eq!(
        resident(&graph, &[0, 1, 0, 2]),
        (135, vec![110, 120, 130, 105])
    );
}

#[test]
fn a_run_that_nobody_uses_is_freed_at_once_and_left_out_as_dead() {
    let graph = diamond();
    let program = Program::new(&graph, ids(&[0, 0, 1, 2, 1])).unwrap();
    assert_eq!(program.frees(0), [TensorId(1)]);
    assert_eq!(program.frees(4), [TensorId(1), TensorId(2)]);
    let left = program.without_dead_runs(&graph);
    assert_eq!(left.operations(), ids(&[0, 1, 2]));
}

#[test]
fn temporary_bytes_count_while_an_operation_runs() {
    let mut graph = diamond();
    graph.operations[1].temp_bytes = Bytes(1000);
    let run = simulate(&graph, &Program::recorded(&graph).unwrap());
    assert_eq!((run.peak, run.peak_step), (Bytes(1130), 1));
    assert_eq!(run.resident[1], Bytes(130));
}

/// 0 (given) -> 1 -> 2, a view of 1 -> 3 (output).
#[test]
fn a_view_keeps_its_base_and_takes_nothing() {
    let mut builder = Builder::default();
    let given = builder.given();
    let base = builder.operation(&[given], 10, 1);
    let view = builder.operation(&[base], 999, 0);
    builder.last().view = true;
    let last = builder.operation(&[view], 3, 1);
    builder.output(last);
    assert_eq!(resident(&builder.graph, &[0, 1, 2]), (13, vec![10, 10, 3]));
    // A view of what is given takes nothing either, and never frees it.
    builder.graph.operations[1].inputs = vec![given];
    assert_eq!(resident(&builder.graph, &[1, 2]), (3, vec![0, 3]));
}

/// 0 (given) -> 1 -> 2 in place -> 3 (output) of 2, and of 1 where `again`.
fn overwriting(again: bool, bytes: u64) -> Graph {
    let mut builder = Builder::default();
    let given = builder.given();
    let one = builder.operation(&[given], 10, 1);
    let two = builder.operation(&[one], bytes, 1);
    builder.last().in_place = Some(0);
    let inputs = if again { vec![two, one] } else { vec![two] };
    let three = builder.operation(&inputs, 1, 1);
    builder.output(three);
    builder.graph
}

#[test]
fn an_operation_overwrites_an_input_that_dies_and_has_its_size() {
    assert_eq!(
        resident(&overwriting(false, 10), &[0, 1, 2]),
        (11, vec![10, 10, 1])
    );
    // Another size, a later use, and a use that recomputation takes away.
    assert_eq!(resident(&overwriting(false, 9), &[0, 1, 2]).0, 19);
    assert_eq!(resident(&overwriting(true, 10), &[0, 1, 2]).0, 21);
    assert_eq!(
        resident(&overwriting(true, 10), &[0, 1, 0, 2]),
        (21, vec![10, 10, 20, 1])
    );
}

#[test]
fn an_input_that_occurs_twice_or_has_a_live_view_is_not_overwritten() {
    let mut twice = overwriting(false, 10);
    twice.operations[1].inputs.push(TensorId(1));
    assert_eq!(resident(&twice, &[0, 1, 2]).0, 20);

    let mut builder = Builder::default();
    let given = builder.given();
    let base = builder.operation(&[given], 10, 1);
    let view = builder.operation(&[base], 10, 0);
    builder.last().view = true;
    let two = builder.operation(&[base], 10, 1);
    builder.last().in_place = Some(0);
    let three = builder.operation(&[two, view], 1, 1);
    builder.output(three);
    assert_eq!(resident(&builder.graph, &[0, 1, 2, 3]).0, 21);
}

#[test]
fn broken_programs_say_what_is_wrong() {
    let graph = diamond();
    let refused = |graph: &Graph, numbers: &[u32], expected: &str| {
        let said = Program::new(graph, ids(numbers)).unwrap_err().to_string();
        assert_eq!(said, expected);
    };
    refused(
        &graph,
        &[0, 2],
        "step 1 (operation 2) reads tensor 2, which no earlier step makes",
    );
    refused(&graph, &[0, 1], "no step makes the output tensor 3");
    refused(
        &graph,
        &[7],
        "step 0 runs operation 7, but there are 3 operations",
    );
    let mut draws = graph.clone();
    draws.operations[0].repeatable = false;
    refused(
        &draws,
        &[0, 1, 0, 2],
        "step 2 runs operation 0 again, which is not repeatable",
    );
}

#[test]
fn broken_graphs_say_what_is_wrong() {
    let refused = |graph: &Graph, expected: &str| {
        assert_eq!(graph.validate().unwrap_err().to_string(), expected);
    };
    let mut early = diamond();
    early.operations.swap(0, 1);
    refused(
        &early,
        "operation 0 reads tensor 1, which no earlier operation makes",
    );
    let mut twice = diamond();
    twice.operations[2].outputs.push(TensorId(1));
    refused(
        &twice,
        "operation 2 makes tensor 1, which is given or made already",
    );
    let mut unmade = diamond();
    unmade.tensors.push(Tensor {
        output: true,
        ..Tensor::default()
    });
    refused(
        &unmade,
        "tensor 4 is an output, but it is neither given nor made",
    );
}
