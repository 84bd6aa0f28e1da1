//! `optimal` against the recurrence of its table, computed plainly: for every number of bytes, every window and every split.

use rekindle_plan::{Bytes, Chain, LossCost, Planner, Seconds, Stage};

use crate::planned::{frontier, output_first, plain_peak};

/// `stages` stages of `kinds` kinds that repeat, with times of whole seconds and sizes of up to about 40 bytes.
fn chain(seed: u64, stages: usize, kinds: usize) -> Chain {
    let mut state = seed;
    let mut below = |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % bound
    };
    let kinds: Vec<Stage> = (0..kinds)
        .map(|_| Stage {
            forward_s: Seconds(below(9) as f64),
            backward_s: Seconds(below(9) as f64),
            output_bytes: Bytes(1 + below(20)),
            saved_bytes: Bytes(20 + below(9)),
            forward_temp_bytes: Bytes(below(40)),
            tracked_temp_bytes: Bytes(below(9)),
            backward_temp_bytes: Bytes(below(9)),
            grad_bytes: Bytes(below(3)),
            ..Stage::default()
        })
        .collect();
    Chain {
        input_bytes: Bytes(4),
        input_grad: true,
        stages: kinds.into_iter().cycle().take(stages).collect(),
        loss: LossCost {
            forward_s: Seconds(2.0),
            backward_temp_bytes: Bytes(6),
            ..LossCost::default()
        },
        ..Chain::default()
    }
}

/// C(0,L,m) directly by the recurrence in the header of `optimal.rs`, for every number of bytes up to `most`.
fn plain(chain: &Chain, most: usize) -> Vec<Option<f64>> {
    let mut nodes = output_first(chain).stages;
    nodes.push(Stage {
        forward_s: chain.loss.forward_s,
        backward_s: chain.loss.backward_s,
        forward_temp_bytes: chain.loss.forward_temp_bytes,
        backward_temp_bytes: chain.loss.backward_temp_bytes,
        ..Stage::default()
    });
    let n = nodes.len();
    let bytes = |size: Bytes| size.0 as usize;
    let in_chain = |i: usize| i < n;
    let x = |i: usize| {
        bytes(if in_chain(i) {
            chain.activation_bytes(i)
        } else {
            Bytes::ZERO
        })
    };
    let y = |i: usize| {
        bytes(if in_chain(i) {
            chain.gradient_bytes(i)
        } else {
            Bytes::ZERO
        })
    };
    let grads = |s: usize, t: usize| bytes(nodes[s..=t].iter().map(|node| node.grad_bytes).sum());
    let mut table = vec![vec![Vec::<Option<f64>>::new(); n]; n];
    for length in 0..n {
        for s in 0..n - length {
            let (t, node) = (s + length, &nodes[s]);
            let saved = bytes(node.saved_bytes);
            let forward = y(t + 1) + saved + bytes(node.tracked_temp_bytes);
            let backward = grads(s, t) + y(s) + y(s + 1) + saved + bytes(node.backward_temp_bytes);
            let splits: Vec<(usize, usize, f64)> = (s + 1..=t)
                .map(|j| {
                    let input = |k: usize| if k == s { 0 } else { x(k) };
                    let peak = |k: usize| input(k) + x(k + 1) + bytes(nodes[k].forward_temp_bytes);
                    let null = y(t + 1) + (s..j).map(peak).max().unwrap();
                    let seconds = nodes[s..j].iter().map(|node| node.forward_s.0).sum();
                    (j, null, seconds)
                })
                .collect();
            let at = |m: usize| {
                let rest = m.checked_sub(saved);
                let inside = match s < t {
                    true => rest.and_then(|rest| table[s + 1][t][rest]),
                    false => Some(0.0),
                };
                let seconds = (node.forward_s + node.backward_s).0;
                let recorded = inside.filter(|_| m >= forward.max(backward));
                let recorded = recorded.map(|inside| seconds + inside);
                let split = splits.iter().filter_map(|&(j, null, seconds)| {
                    let right = table[j][t][m.checked_sub(x(j))?]?;
                    let left = table[s][j - 1][m.checked_sub(grads(j, t))?]?;
                    (m >= null).then_some(seconds + right + left)
                });
                split.chain(recorded).reduce(f64::min)
            };
            table[s][t] = (0..=most).map(at).collect();
        }
    }
    table[0][n - 1].clone()
}

/// Within any number of bytes, the fastest plan takes as long as the recurrence says.
fn agrees(chain: &Chain) {
    let resident = chain.resident_bytes();
    let points = frontier(chain, Planner::Optimal).unwrap();
    let most = (plain_peak(chain) - resident).0 + 1;
    for (memory, expected) in (0..).zip(plain(chain, most as usize)) {
        let fitting = points
            .iter()
            .filter(|point| point.peak <= resident + Bytes(memory));
        let found = fitting.map(|point| point.step.0).reduce(f64::min);
        let stages = chain.stages.len();
        assert_eq!(found, expected, "{stages} stages within {memory} bytes");
    }
}

#[test]
fn different_stages_agree_with_the_plain_recurrence() {
    for stages in 1..12 {
        (0..10).for_each(|seed| agrees(&chain(seed, stages, stages)));
    }
    agrees(&chain(3, 37, 37));
}

#[test]
fn repeating_stages_agree_with_the_plain_recurrence() {
    for stages in 3..12 {
        (0..10).for_each(|seed| agrees(&chain(seed, stages, 3)));
    }
    agrees(&chain(3, 41, 3));
}
