//! Operations of ranks that are threads.

use std::time::Duration;

use rekindle::reduce::{ReduceError, in_process};

use super::ranks;

#[test]
fn every_rank_gets_the_sum_and_what_was_given() {
    for count in 1..5 {
        let sums = ranks(count, |rank| {
            let own = rank.rank() as f32;
            // Operations begun together finish in order.
            let first = rank.all_reduce(vec![own, 1.0]);
            let second = rank.all_reduce(vec![own * own]);
            let gathered = rank
                .all_gather(vec![7; rank.rank()])
                .wait()
                .expect("gathered");
            let sent = rank.broadcast(count - 1, vec![rank.rank() as u8]).wait();
            let sums = (
                first.wait().expect("summed"),
                second.wait().expect("summed"),
            );
            (sums, gathered, sent.expect("sent"))
        });
        // Sums of the first integers and of their squares.
        let n = count as f32;
        let (linear, squares) = (n * (n - 1.0) / 2.0, (n - 1.0) * n * (2.0 * n - 1.0) / 6.0);
        for ((first, second), gathered, sent) in sums {
            assert_eq!((first, second), (vec![linear, n], vec![squares]));
            let lengths: Vec<usize> = gathered.iter().map(Vec::len).collect();
            assert_eq!(lengths, (0..count).collect::<Vec<_>>());
            assert_eq!(sent, [count as u8 - 1]);
        }
    }
}

#[test]
fn a_rank_that_ends_is_named() {
    let errors = ranks(3, |rank| match rank.rank() {
        1 => None,
        _ => rank.all_reduce(vec![0.0]).wait().err(),
    });
    let gone = Some(ReduceError::Gone { rank: 1 });
    assert_eq!(errors, [gone.clone(), None, gone]);
}

#[test]
fn operations_that_do_not_go_together_are_refused_on_all_ranks() {
    let errors = ranks(3, |rank| {
        let length = if rank.rank() == 2 { 4 } else { 3 };
        rank.all_reduce(vec![0.0; length])
            .wait()
            .expect_err("refused")
    });
    for error in errors {
        assert!(
            matches!(&error, ReduceError::Differ { ranks, .. } if *ranks == [2]),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_hangs_is_not_waited_for() {
    let mut ranks = in_process(2);
    let _hangs = ranks.pop();
    let one = ranks
        .pop()
        .expect("two")
        .with_time_limit(Duration::from_millis(20));
    let error = one.all_reduce(vec![0.0]).wait().expect_err("no answer");
    assert!(matches!(error, ReduceError::TimedOut { .. }), "{error}");
}
