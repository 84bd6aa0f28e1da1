use super::*;

const BYTES: Bytes = Bytes(1 << 20);

/// Two ranks whose all-reduce of a bucket takes so long.
fn exchange(bucket_s: f64) -> ExchangeCost {
    let link = Rate {
        latency_s: Seconds(0.0),
        bytes_per_s: BYTES.0 as f64 / bucket_s,
    };
    ExchangeCost {
        ring: Ring { ranks: 2, link },
        broadcast: None,
        take_s_per_byte: 0.0,
        return_s_per_byte: 0.0,
    }
}

/// So many gradients, one complete after each second, after a forward pass of 3 seconds; each a bucket.
fn step(count: usize, update: Option<Seconds>) -> (Timetable, Vec<Vec<(usize, Bytes)>>) {
    let handed = (0..count).map(|gradient| HandOver {
        gradient,
        at: Seconds(4.0 + gradient as f64),
        update,
    });
    let computing = Seconds(3.0 + count as f64);
    let timetable = Timetable {
        handed: handed.collect(),
        means: Vec::new(),
        computing,
    };
    (
        timetable,
        (0..count).map(|one| vec![(one, BYTES)]).collect(),
    )
}

#[test]
fn a_quick_network_leaves_the_last_bucket_alone_to_wait_for() {
    let (timetable, buckets) = step(5, None);
    let taken = exchange(0.75).of_step(&timetable, &buckets, []);
    assert_eq!(taken.waited_s, Seconds(0.75));
    assert_eq!(taken.network_s, Seconds(5.0 * 0.75));
    assert_eq!((taken.buckets, taken.bytes), (5, Bytes(5 << 20)));
}

#[test]
fn a_slow_network_is_busy_from_the_first_bucket_on() {
    let (timetable, buckets) = step(5, None);
    let taken = exchange(2.5).of_step(&timetable, &buckets, []);
    // It begins a second after the backward pass, which lasts five.
    assert_eq!(taken.waited_s, Seconds(1.0 + 5.0 * 2.5 - 5.0));
}

#[test]
fn staging_is_the_computing_threads() {
    let (timetable, buckets) = step(4, None);
    let per_byte = |seconds: f64| seconds / BYTES.0 as f64;
    let staged = ExchangeCost {
        take_s_per_byte: per_byte(0.25),
        return_s_per_byte: per_byte(0.5),
        ..exchange(1.0)
    };
    let taken = staged.of_step(&timetable, &buckets, []);
    assert_eq!(taken.staged_s, Seconds(4.0 * 0.75));
    // Buckets come every 1.25 seconds; the first three sums are there before the last is, and are copied back meanwhile.
    assert_eq!(taken.waited_s, Seconds(0.0));
    assert_eq!(taken.added(), Seconds(3.0));
}

#[test]
fn updates_in_the_backward_pass_wait_for_all_but_one_bucket() {
    // Three seconds a bucket: the first from 4 to 7, the second to 10, waited for at 5 + 0 and after its update.
    let (timetable, buckets) = step(3, Some(Seconds(0.5)));
    let taken = exchange(3.0).of_step(&timetable, &buckets, []);
    // At 5 two are under way: until 7 for the first, updated until 7.5; the last is complete at 8.5. The second is there
    // at 10 and updated at 10.5, the last at 13.
    assert_eq!(taken.waited_s, Seconds(2.0 + 1.5 + 2.5));
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
    let alone = Ring { ranks: 1, link };
    assert_eq!(alone.all_reduce(Bytes(100)), Seconds::ZERO);
}

#[test]
fn buckets_begin_after_the_last_mean_over_ranks() {
    let (mut timetable, buckets) = step(5, None);
    // All-reduces of a bucket take half a second: these, half as large, a quarter, behind the second gradient and the fourth.
    timetable.means = [5.0, 7.0]
        .map(|at| TakeMean {
            at: Seconds(at),
            bytes: Bytes(BYTES.0 / 2),
        })
        .to_vec();
    let taken = exchange(0.5).of_step(&timetable, &buckets, []);
    assert_eq!((taken.means, taken.means_s), (2, Seconds(2.0 * 0.25)));
    // Four are full at 7.5, and summed at 9.5; the step ends at 8.5, which is when the last begins.
    assert_eq!(taken.waited_s, Seconds(9.5 - 8.5 + 0.5));
    assert_eq!(taken.added(), Seconds(1.5 + 0.5));
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
    let (timetable, buckets) = step(2, None);
    let cost = ExchangeCost {
        ring: Ring { ranks: 5, link },
        take_s_per_byte: 0.25,
        ..exchange(0.75)
    };
    let sizes = [10, 5000].map(Bytes);
    let taken = cost.of_step(&timetable, &buckets, sizes);
    assert_eq!(taken.parameter_bytes, Bytes(5010));
    let expected = of(5, 10) + of(5, 5000) + Seconds(5010.0 * 0.25);
    near(taken.parameters_s, expected);
    let measured = ExchangeCost {
        broadcast: Some(link),
        ..cost
    };
    let taken = measured.of_step(&timetable, &buckets, sizes);
    near(taken.parameters_s, Seconds(2.0 + 5010.0 * (0.01 + 0.25)));
    // Parts of a batch share their update.
    assert_eq!(taken.repeated(3).parameters_s, taken.parameters_s);
}

#[test]
fn gradients_are_handed_over_after_their_last_use_or_by_their_update() {
    use crate::graph::{Operation, OperationId, Tensor};

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
    let timetable = {
        // The second layer's operation is a mean over ranks, too.
        let means = HashMap::from([(OperationId(1), Bytes(12))]);
        Timetable::new(&graph, &program, &[TensorId(6), TensorId(4)], &means)
    };
    let handed = |gradient, at, update| HandOver {
        gradient,
        at: Seconds(at),
        update,
    };
    let expected = Timetable {
        handed: vec![handed(1, 4.0, None), handed(0, 6.0, Some(Seconds(0.25)))],
        means: vec![TakeMean {
            at: Seconds(2.0),
            bytes: Bytes(12),
        }],
        computing: Seconds(6.0),
    };
    assert_eq!(timetable, expected);
}
