//! What an exchange between ranks takes of a step, by hand.
use rekindle_plan::graph::{
    ExchangeCost, Graph, Operation, OperationId, Program, Rate, Ring, Tensor, TensorId, Timetable,
};
use rekindle_plan::{Bytes, Seconds};

const BYTES: Bytes = Bytes(1 << 20);

/// Two ranks whose all-reduce of a bucket takes so long.
fn exchange(bucket_s: f64) -> ExchangeCost {
    let link = Rate {
        latency_s: Seconds(0.0),
        bytes_per_s: BYTES.0 as f64 / bucket_s,
    };
    ExchangeCost {
        ring: Ring { ranks: 2, link },
        staged_s_per_byte: 0.0,
    }
}

/// A step of 5 seconds behind the first gradient.
const STEP: Timetable = Timetable {
    order: Vec::new(),
    hides: Seconds(5.0),
};

#[test]
fn a_quick_network_leaves_the_last_bucket_alone_to_wait_for() {
    let taken = exchange(0.75).of_step(&STEP, &[BYTES; 5], &[], &[]);
    assert_eq!(taken.waited_s, Seconds(0.75));
    assert_eq!(taken.network_s, Seconds(5.0 * 0.75));
    assert_eq!((taken.buckets, taken.bytes), (5, Bytes(5 << 20)));
}

#[test]
fn a_slow_network_is_busy_from_the_first_gradient_on() {
    let taken = exchange(2.5).of_step(&STEP, &[BYTES; 5], &[], &[]);
    assert_eq!(taken.waited_s, Seconds(5.0 * 2.5 - 5.0));
}

#[test]
fn staging_and_means_are_added() {
    let staged = ExchangeCost {
        staged_s_per_byte: 0.75 / BYTES.0 as f64,
        ..exchange(1.0)
    };
    // All-reduces of a bucket take a second: these, half as large, a half.
    let means = [Bytes(BYTES.0 / 2); 2];
    let taken = staged.of_step(&STEP, &[BYTES; 4], &means, &[]);
    assert_eq!(taken.staged_s, Seconds(4.0 * 0.75));
    assert_eq!((taken.means, taken.means_s), (2, Seconds(2.0 * 0.875)));
    assert_eq!(taken.waited_s, Seconds(1.0));
    assert_eq!(taken.added(), Seconds(3.0 + 1.75 + 1.0));
}

#[test]
fn a_ring_is_the_line_through_two_times() {
    let link = Rate {
        latency_s: Seconds(0.5),
        bytes_per_s: 1000.0,
    };
    let ring = Ring { ranks: 5, link };
    let at = |bytes| (Bytes(bytes), ring.all_reduce(Bytes(bytes)));
    let found = Ring::of_times(5, at(100), at(5000));
    assert!((found.link.latency_s.0 - 0.5).abs() < 1e-12, "{found:?}");
    assert!((found.link.bytes_per_s - 1000.0).abs() < 1e-9, "{found:?}");
    // Eight rounds of half a second and 100 bytes each.
    assert_eq!(ring.all_reduce(Bytes(500)), Seconds(8.0 * 0.6));
    let alone = Ring { ranks: 1, link };
    assert_eq!(alone.all_reduce(Bytes(100)), Seconds::ZERO);
}

/// Sums of rounded numbers.
#[track_caller]
fn near(one: Seconds, other: Seconds) {
    assert!((one - other).0.abs() < 1e-9, "{one}, {other}");
}

#[test]
fn updated_parameters_are_sent_one_after_the_other() {
    let link = Rate {
        latency_s: Seconds(1.0),
        bytes_per_s: 100.0,
    };
    let of = |ranks: usize, bytes: u64| Ring { ranks, link }.broadcast(Bytes(bytes));
    // One message; three levels of a tree; five ranks' parts of 500 bytes, in 3 + 4 and 4 messages.
    assert_eq!(of(1, 500), Seconds(0.0));
    assert_eq!(of(2, 500), Seconds(6.0));
    assert_eq!(of(5, 10), Seconds(3.0 * 1.1));
    assert_eq!(of(5, 5000), Seconds(7.0 + 2.0 * 0.8 * 50.0));
    let cost = ExchangeCost {
        ring: Ring { ranks: 5, link },
        staged_s_per_byte: 0.25,
    };
    let sizes = [10, 5000].map(Bytes);
    let taken = cost.of_step(&STEP, &[BYTES; 2], &[], &sizes);
    assert_eq!(taken.parameter_bytes, Bytes(5010));
    let expected = of(5, 10) + of(5, 5000) + Seconds(5010.0 * 0.25);
    near(taken.parameters_s, expected);
    // Parts of a batch share their update.
    assert_eq!(taken.repeated(3).parameters_s, taken.parameters_s);
}

#[test]
fn gradients_are_complete_after_their_last_use_and_buckets_begin_after_the_means() {
    // Two layers, each a second: 0 and 1 are given, 2 and 3 activations, 4 the gradient of 3, 5 that of 2, 6 that of 1.
    let tensor = |id| Tensor {
        bytes: Bytes(8),
        given: id < 2,
        output: id == 4,
        ..Tensor::default()
    };
    let operation = |inputs: &[u32], output, backward| Operation {
        inputs: inputs.iter().map(|&id| TensorId(id)).collect(),
        outputs: vec![TensorId(output)],
        seconds: Seconds(1.0),
        backward,
        ..Operation::default()
    };
    let update = Operation {
        seconds: Seconds(0.25),
        repeatable: false,
        updates: Some(TensorId(1)),
        ..operation(&[6], 7, true)
    };
    let graph = Graph {
        tensors: (0..8).map(tensor).collect(),
        operations: vec![
            operation(&[0, 1], 2, false),
            operation(&[2], 3, false),
            operation(&[3], 4, true),
            operation(&[4], 5, true),
            operation(&[5, 2], 6, true),
            update,
        ],
        fixed_bytes: Bytes::ZERO,
    };
    // The first layer runs again after the gradient 4 was read.
    let program = [0, 1, 2, 3, 0, 4, 5].map(OperationId).to_vec();
    let program = Program::new(&graph, program).expect("whole");
    let of = |means: &[u32]| {
        let means = means.iter().map(|&id| OperationId(id)).collect();
        let gradients = [Some(TensorId(6)), None, Some(TensorId(4))];
        Timetable::new(&graph, &program, &gradients, &means)
    };
    let expected = Timetable {
        order: vec![2, 0],
        hides: Seconds(2.0),
    };
    // The second layer's operation may be a mean over ranks, or the last one of the backward pass.
    assert_eq!(of(&[1]), expected);
    assert_eq!(of(&[]), expected);
    let hides = Seconds::ZERO;
    assert_eq!(of(&[1, 4]), Timetable { hides, ..expected });
}
