//! A second opinion on plans of chains: their written actions one by one, by what each reads, leaves and frees.

use rekindle_plan::{Bytes, Chain};

/// The peak of each action, everything counted, and the time of all.
///
/// # Panics
/// If an action reads what is not there, or something is left to do.
pub fn referee(chain: &Chain, actions: &[String]) -> (Vec<Bytes>, f64) {
    let stages = chain.stages.len();
    // Whether a_i is held by itself, and whether the graph of stage i is, with a_{i+1} in it.
    let (mut alone, mut recorded) = (vec![false; stages + 1], vec![false; stages]);
    alone[0] = true;
    // The i of y_i, which the backward passes count down from one past the last.
    let mut gradient = stages + 1;
    let (mut peaks, mut forwards) = (Vec::new(), vec![0.0; stages]);
    for action in actions {
        let (name, number) = action.split_once(' ').unwrap_or((action, "0"));
        let i: usize = number.parse().unwrap();
        let bytes = held(chain, &alone, &recorded, gradient);
        let reads = |i: usize| assert!(alone[i] || recorded[i - 1], "{action}: no a_{i}");
        let during = match name {
            "forward" | "forward_keep" => {
                reads(i);
                alone[i + 1] = true;
                alone[i] &= i == 0 || name == "forward_keep";
                forwards[i] += 1.0;
                chain.stages[i].output_bytes + chain.stages[i].forward_temp_bytes
            }
            "forward_tracked" => {
                reads(i);
                assert!(!recorded[i], "{action}: twice");
                recorded[i] = true;
                forwards[i] += 1.0;
                chain.stages[i].saved_bytes + chain.stages[i].tracked_temp_bytes
            }
            "loss" => {
                reads(stages);
                assert_eq!(gradient, stages + 1, "the loss runs once");
                gradient = stages;
                alone[stages] = false;
                let backward = chain.gradient_bytes(stages) + chain.loss.backward_temp_bytes;
                backward.max(chain.loss.forward_temp_bytes)
            }
            "backward" => {
                reads(i);
                assert!(gradient == i + 1 && recorded[i], "{action}: too early");
                (gradient, recorded[i]) = (i, false);
                alone[i] &= i == 0;
                let stage = &chain.stages[i];
                chain.gradient_bytes(i) + stage.grad_bytes + stage.backward_temp_bytes
            }
            "optimize" => {
                assert_eq!(gradient, 0, "the optimizer runs last");
                chain.optimizer.temp_bytes
            }
            other => panic!("no action: {other}"),
        };
        peaks.push(bytes + during);
    }
    assert_eq!(actions.last().map(String::as_str), Some("optimize"));
    // In this order rounding is the same as on the graph.
    let forward = chain.stages.iter().zip(forwards);
    let forward: f64 = forward.map(|(stage, runs)| runs * stage.forward_s.0).sum();
    let backward = chain.stages.iter().rev().map(|stage| stage.backward_s.0);
    let step = [chain.loss.forward_s.0, chain.loss.backward_s.0].into_iter();
    let step = step.chain(backward).fold(forward, |time, one| time + one);
    (peaks, step + chain.optimizer.step_s.0)
}

/// What is held between two actions.
fn held(chain: &Chain, alone: &[bool], recorded: &[bool], gradient: usize) -> Bytes {
    let mut bytes = chain.fixed_bytes + chain.optimizer.state_bytes;
    for (i, _) in alone.iter().enumerate().filter(|(_, alone)| **alone) {
        bytes += chain.activation_bytes(i);
    }
    for (i, stage) in chain.stages.iter().enumerate() {
        bytes += if recorded[i] {
            stage.saved_bytes
        } else {
            Bytes::ZERO
        };
        bytes += if i >= gradient {
            stage.grad_bytes
        } else {
            Bytes::ZERO
        };
    }
    bytes
        + if gradient <= chain.stages.len() {
            chain.gradient_bytes(gradient)
        } else {
            Bytes::ZERO
        }
}
