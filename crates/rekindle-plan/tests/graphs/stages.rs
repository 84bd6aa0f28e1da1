//! Where a graph is cut, and what its stages run.
use crate::graph_support::graphs::{Builder, Sequence, residual, unet};
use rekindle_plan::graph::{
    Graph, Link, OperationId, Program, Rate, SpanPass, Stages, TensorId, Transfer, borders,
    changes, held, plan_graph, simulate,
};
use rekindle_plan::schedule::Schedule;
use rekindle_plan::{Bytes, Planner, Request, Seconds, StageId, chain_frontier, plan_chain};

/// Three forward operations, a loss gradient and three backward operations that read the inputs of the forward.
fn three() -> Builder {
    let mut builder = Builder::default();
    let mut states = vec![builder.given()];
    for _ in 0..3 {
        let state = builder.operation(&states[states.len() - 1..], 10, 1);
        states.push(state);
    }
    gradients(&mut builder, &states);
    builder
}

/// As [`three`], each forward operation with a running statistic of one byte, which is handed out at the step's end.
fn three_with_statistics() -> Builder {
    let mut builder = Builder::default();
    let mut states = vec![builder.given()];
    let mut statistics = Vec::new();
    for stage in 0..3 {
        let state = builder.operation(&states[stage..], 10, 1);
        builder.last().stage = Some(stage as u32);
        statistics.push(builder.operation(&[state], 1, 1));
        builder.last().stage = Some(stage as u32);
        states.push(state);
    }
    gradients(&mut builder, &states);
    for statistic in statistics {
        let moved = builder.operation(&[statistic], 1, 0);
        builder.last().backward = true;
        builder.output(moved);
    }
    builder
}

/// The loss's gradient, and back to the first of some states.
fn gradients(builder: &mut Builder, states: &[TensorId]) {
    let mut gradient = builder.operation(&states[states.len() - 1..], 10, 1);
    builder.last().backward = true;
    for state in states[..states.len() - 1].iter().rev() {
        gradient = builder.operation(&[gradient, *state], 10, 1);
        builder.last().backward = true;
    }
    builder.output(gradient);
}

fn places(graph: &Graph) -> Vec<usize> {
    borders(graph, false).iter().map(|b| b.operations).collect()
}

#[test]
fn borders_are_where_one_storage_is_live() {
    let graph = residual(&mut Sequence(1), 5, 3);
    // The first operation, then layers of three and a sum that also reads the layer's input, then the loss.
    for layer in 0..=5 {
        let cut = borders(&graph, false);
        let border = cut.iter().find(|b| b.operations == 1 + 4 * layer).unwrap();
        assert_eq!(border.live, 1);
    }
}

#[test]
fn marks_decide_where_there_are_any() {
    let mut graph = three().graph;
    for (place, stage) in [(0, 0), (1, 0), (2, 4)] {
        graph.operations[place].stage = Some(stage);
    }
    assert_eq!(places(&graph), [2]);
    // What is not marked after the last mark is the loss.
    graph.operations[2].stage = None;
    graph.operations[1].stage = Some(1);
    assert_eq!(places(&graph), [1, 2]);
}

/// Batch normalisation's statistics move after the backward: a stage's backward does not last until then.
#[test]
fn what_a_step_hands_out_at_its_end_lengthens_no_backward() {
    let graph = three_with_statistics().graph;
    let stages = Stages::of_graph(&graph);
    let backward = |stage| -> Vec<u32> { stages.backward(StageId(stage)).map(|id| id.0).collect() };
    // The last reads what the loss is made from.
    assert_eq!(backward(2), [6]);
    assert_eq!(backward(1), [7]);
    assert_eq!(backward(0), [8, 9, 10, 11, 12]);
    // Held all along is what the statistics of the second stage and of the loss are made from. The first stage saves its own.
    assert_eq!(stages.chain().fixed_bytes, Bytes(2));
}

#[test]
fn a_cheap_tensor_that_crosses_everything_hides_no_border() {
    let mut builder = Builder::default();
    let (input, parameter) = (builder.given(), builder.given());
    let cast = builder.operation(&[parameter], 50, 0);
    let mut x = input;
    for _ in 0..4 {
        x = builder.operation(&[x, cast], 10, 1000);
    }
    builder.output(x);
    assert_eq!(borders(&builder.graph, false).len(), 3);
}

#[test]
fn skips_across_everything_still_leave_borders() {
    let graph = unet(4, false);
    let borders = borders(&graph, false);
    assert!(borders.iter().any(|border| border.live > 3));
    let loss = borders.len();
    let stages = Stages::new(&graph, &borders, 1);
    assert_eq!(stages.chain().stages.len(), loss);
    // Every operation belongs to one stage.
    let mut all: Vec<OperationId> = (0..=loss)
        .flat_map(|i| {
            let forward = stages.forward(StageId(i));
            forward
                .chain(stages.backward(StageId(i)))
                .collect::<Vec<_>>()
        })
        .collect();
    all.sort_unstable();
    let operations = 0..graph.operations.len() as u32;
    assert!(all.into_iter().eq(operations.map(OperationId)));
}

/// Borders after operations 0 and 1. Operation 3 is the last that reads what operation 2 made, so 2 and 3 are the
/// loss; likewise 1 and 4 are stage 1, and 0, 5 and 6 stage 0, whose output operation 5 reads.
#[test]
fn a_schedule_becomes_the_operations_of_its_stages() {
    let graph = three().graph;
    let stages = Stages::of_graph(&graph);
    let segments = |segments| {
        let request = Request::of(Planner::Segments(Some(segments)), None);
        let plan = plan_chain(stages.chain(), &request).unwrap();
        stages.program(&graph, &plan.schedule.unwrap()).unwrap()
    };
    let recorded = Program::recorded(&graph).unwrap();
    assert_eq!(segments(1).operations(), recorded.operations());
    let halves = segments(2);
    let numbers: Vec<u32> = halves.operations().iter().map(|id| id.0).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4, 0, 5, 6]);
}

/// Operation 0 also makes a new running statistic, which nothing reads: recomputing its stage must not make it again.
#[test]
fn what_only_leaves_the_step_runs_once() {
    let mut builder = three();
    let first = builder.graph.operations[0].outputs[0];
    let statistic = builder.operation(&[first], 4, 1);
    builder.output(statistic);
    let made = builder.graph.operations.pop().unwrap();
    builder.graph.operations.insert(1, made);
    let graph = builder.graph;
    graph.validate().unwrap();
    let stages = Stages::of_graph(&graph);
    let plans = chain_frontier(stages.chain(), Planner::Optimal, |plan| plan).unwrap();
    for plan in plans {
        let program = stages.program(&graph, &plan.schedule.unwrap()).unwrap();
        let runs = program.operations().iter().filter(|id| id.0 == 1).count();
        assert_eq!(runs, 1);
        assert!(simulate(&graph, &program).peak <= plan.simulated.peak);
    }
}

/// Rows in an order that is found once, then eight layers: only the order is kept.
#[test]
fn what_is_made_of_given_tensors_in_an_order_found_once_runs_again() {
    let mut builder = Builder::default();
    let [batch, weight] = [builder.given(), builder.given()];
    let order = builder.operation(&[batch], 1, 1);
    builder.last().repeatable = false;
    let mut states = vec![builder.operation(&[batch, order], 10, 1)];
    for layer in 0..8 {
        let state = builder.operation(&[states[layer], weight], 10, 1);
        states.push(state);
    }
    gradients(&mut builder, &states);
    for given in [batch, weight] {
        builder.graph.tensors[given.index()].bytes = Bytes(10);
    }
    let recorded = simulate(&builder.graph, &Program::recorded(&builder.graph).unwrap());
    let request = Request::of(Planner::Segments(Some(3)), Some(recorded.peak));
    let plan = plan_graph(&builder.graph, &request).unwrap();
    let saved = recorded.peak - plan.simulated.peak;
    // Three layers more than the inputs of three segments and the layers of one.
    assert!(saved >= Bytes(30), "{saved} of {}", recorded.peak);
}

/// The skips of a U-Net are most of its memory: only a planner that evicts single tensors gets below half of it
/// cheaply.
#[test]
fn a_unet_trains_in_half_the_memory() {
    let graph = unet(4, false);
    let recorded = simulate(&graph, &Program::recorded(&graph).unwrap());
    let request = Request::within(Bytes(recorded.peak.0 / 2));
    let plan = plan_graph(&graph, &request).unwrap();
    let again = plan.simulated.time.0 - recorded.time.0;
    let forward = graph.operations.iter().filter(|o| !o.backward);
    let forward: f64 = forward.map(|operation| operation.seconds.0).sum();
    assert!(again <= forward, "more than the whole forward ran again");
}

/// The costs of stages are upper bounds on a graph, but the cut is as lean as the leanest of all, by trying these.
#[test]
fn a_number_of_segments_is_cut_where_the_peak_is_least() {
    let mut random = Sequence(5);
    let graphs = [unet(3, true), unet(4, true), residual(&mut random, 9, 4)];
    for graph in graphs {
        let stages = Stages::of_graph(&graph);
        let count = stages.chain().stages.len();
        for segments in [2, 3, 4] {
            let mut least = Bytes::MAX;
            let mut starts: Vec<usize> = (1..segments).collect();
            loop {
                let schedule = Schedule::of_segments(&[&starts[..], &[count]].concat());
                let program = stages.program(&graph, &schedule).unwrap();
                least = least.min(simulate(&graph, &program).peak);
                // The next of all ways to choose starts.
                let free = |place: &usize| starts[*place] < count - (segments - 1) + place;
                let Some(place) = (0..segments - 1).rev().find(free) else {
                    break;
                };
                let from = starts[place] + 1;
                starts.truncate(place);
                starts.extend(from..from + segments - 1 - place);
            }
            let request = Request::of(Planner::Segments(Some(segments)), None);
            let plan = plan_graph(&graph, &request).unwrap();
            assert_eq!(plan.simulated.peak, least, "{count} stages, {segments}");
        }
    }
}

#[test]
fn a_plan_is_told_in_passes_of_stages() {
    let graph = three().graph;
    let stages = Stages::of_graph(&graph);
    let request = Request::of(Planner::Segments(Some(2)), None);
    let plan = plan_graph(&graph, &request).unwrap();
    let segments = [(0, 0), (1, 1)].map(|(first, last)| (StageId(first), StageId(last)));
    assert_eq!(plan.segments(), Some(segments.to_vec()));
    let spans = stages.spans(&graph, &plan.program);
    let told: Vec<_> = spans.iter().map(|span| (span.pass, span.stage.0)).collect();
    use SpanPass::{Backward, Forward, Loss, Recompute};
    // The last of three operations is behind the last border.
    let expected = [
        (Forward, 0),
        (Forward, 1),
        (Loss, 2),
        (Backward, 1),
        (Recompute, 0),
        (Backward, 0),
    ];
    assert_eq!(told, expected);
    let covered: usize = spans.iter().map(|span| span.steps.len()).sum();
    assert_eq!(covered, plan.program.operations().len());

    let held = held(&graph, &plan.program, &spans);
    let peak = held.iter().map(|moment| moment.at_peak.total()).max();
    assert_eq!(peak, Some(plan.simulated.peak));
    let after = held.iter().map(|moment| moment.after.total());
    let resident = spans
        .iter()
        .map(|span| plan.simulated.resident[span.steps.end - 1]);
    assert!(after.eq(resident));
    // What is made again in the backward pass is no activation of the forward pass.
    let again = &held[4];
    assert_eq!(again.after.graphs, Bytes(10));
    assert_eq!(again.after.gradients, Bytes(10));
}

/// The forward makes the tensors 1 to 3, the loss 4, and the backward 5 to 7; the first stage runs again.
#[test]
fn each_pass_names_the_tensors_that_it_makes_and_frees() {
    let mut graph = three().graph;
    let operations = [0, 1, 2, 3, 4, 0, 5, 6].map(OperationId);
    let program = Program::new(&graph, operations.to_vec()).unwrap();
    let stages = Stages::of_graph(&graph);
    let spans = stages.spans(&graph, &program);
    let changed = |graph: &Graph| -> Vec<[Vec<u32>; 2]> {
        let numbers = |tensors: Vec<TensorId>| tensors.iter().map(|one| one.0).collect();
        let changes = changes(graph, &program, &spans).into_iter();
        changes
            .map(|change| [change.appeared, change.went].map(numbers))
            .collect()
    };
    let mut expected = [
        [vec![1], vec![]],
        [vec![2], vec![1]],
        // The loss frees the third state, which it makes.
        [vec![4], vec![]],
        [vec![5], vec![2, 4]],
        [vec![1], vec![]],
        [vec![7], vec![5, 1]],
    ];
    assert_eq!(changed(&graph), expected);
    // A tensor whose storage is reused is gone all the same.
    graph.operations[4].in_place = Some(0);
    assert_eq!(changed(&graph), expected);
    // A view keeps the storage of the first state until the second stage's backward.
    graph.operations[1].view = true;
    expected[1] = [vec![], vec![]];
    expected[3] = [vec![5], vec![1, 4]];
    assert_eq!(changed(&graph), expected);
}

/// The first state is on the host from the loss on until its own gradient.
#[test]
fn transfers_part_the_passes_that_they_run_in() {
    let graph = three().graph;
    let state = graph.operations[0].outputs[0];
    let rate = Rate {
        latency_s: Seconds(1.0),
        bytes_per_s: 10.0,
    };
    let link = Link {
        to_host: rate,
        to_device: rate,
        host_bytes: Bytes(100),
        staging_bytes: Bytes(1),
    };
    let linked = graph.linked(&[state], Some(&link)).unwrap();
    let (offload, fetch) = (7, 8);
    let operations = [0, 1, 2, offload, 3, 4, fetch, 5, 6].map(OperationId);
    let program = Program::new(&linked, operations.to_vec()).unwrap();
    let stages = Stages::of_graph(&graph);
    let spans = stages.spans(&linked, &program);
    let told: Vec<_> = spans
        .iter()
        .map(|span| (span.pass, span.stage.0, span.transfer, span.steps.clone()))
        .collect();
    use SpanPass::{Backward, Forward, Loss};
    let expected = [
        (Forward, 0, None, 0..1),
        (Forward, 1, None, 1..2),
        (Loss, 2, None, 2..3),
        (Loss, 2, Some(Transfer::Offload), 3..4),
        (Loss, 2, None, 4..5),
        (Backward, 1, None, 5..6),
        (Backward, 1, Some(Transfer::Fetch), 6..7),
        (Backward, 0, None, 7..9),
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_marked_gradient_ends_its_stages_backward() {
    let mut graph = three().graph;
    for (place, stage) in [(0, 0), (1, 1), (2, 2)] {
        graph.operations[place].stage = Some(stage);
    }
    let backward = |graph: &Graph| -> Vec<usize> {
        let stages = Stages::of_graph(graph);
        let stages_of = 0..=stages.chain().stages.len();
        stages_of
            .map(|stage| stages.backward(StageId(stage)).count())
            .collect()
    };
    // By what is read, each operation belongs to the stage whose output it reads; what is left is the first's.
    assert_eq!(backward(&graph), [2, 1, 1]);
    graph.operations[4].stage = Some(2);
    assert_eq!(backward(&graph), [2, 0, 2]);
}
