//! `optimal` against reference optima, which another program computed.
//!
//! Its symbols and methods are in the first line of `data/chain_optima.json`.

use rekindle_plan::{
    Action, Bytes, Chain, LossCost, OptimizerCost, Planner, Request, Seconds, Stage, StageId,
    schedule,
};
use serde_json::Value;

use crate::planned::{Refused, plan, smallest_peak};
use crate::referee::referee;

const REFERENCE: &str = include_str!("../data/chain_optima.json");

fn reference() -> Value {
    serde_json::from_str(REFERENCE).unwrap()
}

/// A chain in the symbols of the reference file: `fw`, `ftmp` per stage, `bw`, `btmp` per stage and loss, `x` for
/// a_0..a_L, `xbar[i + 1]` for stage i.
fn from_symbols(
    fw: &[u64],
    bw: &[u64],
    x: &[u64],
    xbar: &[u64],
    ftmp: &[u64],
    btmp: &[u64],
) -> Chain {
    let stages = (0..fw.len()).map(|i| Stage {
        name: format!("s{i}"),
        forward_s: Seconds(fw[i] as f64),
        backward_s: Seconds(bw[i] as f64),
        output_bytes: Bytes(x[i + 1]),
        saved_bytes: Bytes(xbar[i + 1]),
        forward_temp_bytes: Bytes(ftmp[i]),
        tracked_temp_bytes: Bytes(ftmp[i]),
        backward_temp_bytes: Bytes(btmp[i]),
        ..Stage::default()
    });
    Chain {
        input_bytes: Bytes(x[0]),
        input_grad: true,
        fixed_bytes: Bytes(0),
        stages: stages.collect(),
        loss: LossCost {
            backward_s: Seconds(bw[fw.len()] as f64),
            backward_temp_bytes: Bytes(btmp[fw.len()]),
            ..LossCost::default()
        },
        optimizer: OptimizerCost::default(),
    }
}

fn numbers(value: &Value) -> Vec<u64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|number| number.as_u64().unwrap())
        .collect()
}

fn chain(value: &Value) -> Chain {
    let field = |name: &str| numbers(&value[name]);
    from_symbols(
        &field("fw"),
        &field("bw"),
        &field("x"),
        &field("xbar"),
        &field("ftmp"),
        &field("btmp"),
    )
}

fn optimum(chain: &Chain, limit: u64) -> Option<f64> {
    let request = Request::of(Planner::Optimal, Some(Bytes(limit)));
    match plan(chain, &request) {
        Ok(plan) => {
            assert!(plan.peak <= Bytes(limit), "{} > {limit}", plan.peak.0);
            Some(plan.step.0)
        }
        Err(Refused::Infeasible { .. }) => None,
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn the_fastest_schedules_of_chains_with_all_kinds_of_stages() {
    let reference = reference();
    let mut checked = 0;
    for entry in reference["chains"].as_array().unwrap() {
        let chain = chain(&entry["chain"]);
        let name = &entry["name"];
        assert_eq!(
            smallest_peak(&chain).0,
            entry["min_feasible_mem"].as_u64().unwrap(),
            "{name}"
        );
        let plain = entry["peak_no_recompute"].as_u64().unwrap();
        assert_eq!(
            optimum(&chain, plain),
            entry["makespan_no_recompute"].as_f64(),
            "{name}"
        );
        assert_ne!(
            optimum(&chain, plain - 1),
            entry["makespan_no_recompute"].as_f64(),
            "{name}"
        );
        for case in entry["cases"].as_array().unwrap() {
            let limit = case["mem_limit"].as_u64().unwrap();
            assert_eq!(
                optimum(&chain, limit),
                case["persistent"].as_f64(),
                "{name} at {limit}"
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 210);
}

/// The peaks of the reference, which another program computed; what each forward keeps follows from the order.
#[test]
fn time_and_peak_of_given_schedules() {
    let reference = reference();
    let entry = &reference["chains"][0];
    let chain = chain(&entry["chain"]);
    let given = entry["schedules"].as_array().unwrap();
    assert_eq!(given.len(), 15);
    for given in given {
        let text = given["ops"].as_str().unwrap();
        let (mut actions, expected): (Vec<Action>, Vec<String>) =
            text.split(' ').map(action).unzip();
        actions.push(Action::Optimize);
        let written = schedule::written(&actions);
        assert_eq!(written[..expected.len()], expected, "{text}");
        let (peaks, time) = referee(&chain, &written);
        let peak = peaks.iter().max().map(|peak| peak.0);
        assert_eq!(peak, given["peak"].as_u64(), "{text}");
        assert_eq!(Some(time), given["makespan"].as_f64(), "{text}");
    }
}

/// An operation in the letters of the reference, and as schedules write it.
fn action(text: &str) -> (Action, String) {
    let (letters, number) = text.split_once('_').unwrap_or((text, "0"));
    let stage = StageId(number.parse().unwrap());
    match letters {
        "CF" => (Action::Forward(stage), format!("forward_keep {number}")),
        "Fn" => (Action::Forward(stage), format!("forward {number}")),
        "Fe" => (Action::Forward(stage), format!("forward_tracked {number}")),
        "L" => (Action::Loss, "loss".to_owned()),
        "B" => (Action::Backward(stage), format!("backward {number}")),
        other => panic!("unknown operation {other}"),
    }
}

/// Equal stages that take 1 second forward and nothing backward.
fn equal_stages(n: usize, x: u64, xbar: u64) -> Chain {
    from_symbols(
        &vec![1; n],
        &vec![0; n + 1],
        &vec![x; n + 1],
        &vec![xbar; n + 1],
        &vec![0; n],
        &vec![0; n + 1],
    )
}

#[test]
fn the_fastest_schedules_of_equal_stages_at_every_limit() {
    let reference = reference();
    for entry in reference["uniform"].as_array().unwrap() {
        let of = |name: &str| entry[name].as_u64().unwrap();
        assert_eq!((of("fw"), of("bw"), of("tmp")), (1, 0, 0));
        let chain = equal_stages(of("n") as usize, of("x"), of("xbar"));
        let steps = entry["steps_mem_makespan"].as_array().unwrap();
        let first = steps[0][0].as_u64().unwrap();
        assert_eq!(optimum(&chain, first - 1), None);
        let last = steps[steps.len() - 1][0].as_u64().unwrap();
        for limit in first..=last + 1 {
            let step = steps
                .iter()
                .rfind(|step| step[0].as_u64().unwrap() <= limit)
                .unwrap();
            assert_eq!(
                optimum(&chain, limit),
                step[1].as_f64(),
                "{} at {limit}",
                entry["name"]
            );
        }
    }
}

/// Equal stages whose graphs are as large as their outputs: a limit of s + 4 holds s checkpoints or graphs, the input, an
/// output and two gradients.
#[test]
fn forwards_of_equal_stages_are_those_of_the_reference() {
    for entry in reference()["revolve_counts"].as_array().unwrap() {
        let of = |name: &str| entry[name].as_u64().unwrap() as usize;
        assert_eq!(
            optimum(&equal_stages(of("n"), 1, 1), of("s") as u64 + 4),
            entry["optimal_steps_mixed"].as_f64()
        );
    }
}

/// Stages with large temporary bytes: a program that tests only one memory condition of the recorded branch finds 131
/// here, with a schedule that peaks at 50.
#[test]
fn both_conditions_of_the_recorded_branch_are_tested() {
    let chain = from_symbols(
        &[7, 1, 5, 9, 8, 7],
        &[14, 2, 10, 18, 16, 14, 0],
        &[5, 8, 6, 10, 4, 9, 3],
        &[5, 10, 7, 10, 6, 10, 5],
        &[0, 20, 0, 20, 0, 0],
        &[0; 7],
    );
    assert_eq!(optimum(&chain, 49), Some(132.0));
    assert_eq!(optimum(&chain, 50), Some(131.0));
}
