//! `optimal` against reference optima, which another program computed.
//!
//! `data/chain_optima_extract.json` is a part of the reference file; the whole file is used where it lies beside the
//! project.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::path::Path;

use rekindle_plan::{
    Bytes, Chain, LossCost, OptimizerCost, PlanError, PlanRequest, PlannerKind, Seconds, Stage,
    plan, simulate, smallest_peak,
};
use serde_json::Value;

const EXTRACT: &str = include_str!("data/chain_optima_extract.json");
const WHOLE: &str = "../../../shared/oracles/chain_optima.json";

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
    let request = PlanRequest {
        planner: PlannerKind::Optimal,
        budget: Some(Bytes(limit)),
        ..PlanRequest::default()
    };
    match plan(chain, &request) {
        Ok(plan) => {
            let run = simulate(chain, &plan.schedule).unwrap();
            assert!(run.peak <= Bytes(limit), "{} > {limit}", run.peak.0);
            assert_eq!(run.time, plan.step);
            Some(plan.step.0)
        }
        Err(PlanError::Infeasible { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The makespan of a case, which is a number, an object with one, or null.
fn makespan(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value["makespan"].as_f64())
}

fn check_chains(entries: &Value) -> usize {
    let mut checked = 0;
    for entry in entries.as_array().unwrap() {
        let chain = chain(&entry["chain"]);
        let name = &entry["name"];
        assert_eq!(
            smallest_peak(&chain).unwrap().0.0,
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
                makespan(&case["persistent"]),
                "{name} at {limit}"
            );
            checked += 1;
        }
    }
    checked
}

fn check_uniform(entries: &Value) {
    for entry in entries.as_array().unwrap() {
        let n = entry["n"].as_u64().unwrap() as usize;
        let of = |name: &str, count: usize| vec![entry[name].as_u64().unwrap(); count];
        let chain = from_symbols(
            &of("fw", n),
            &of("bw", n + 1),
            &of("x", n + 1),
            &of("xbar", n + 1),
            &of("tmp", n),
            &of("tmp", n + 1),
        );
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

#[test]
fn extract_of_the_reference() {
    let extract: Value = serde_json::from_str(EXTRACT).unwrap();
    assert!(check_chains(&extract["chains"]) > 30);
    check_uniform(&extract["uniform"]);
}

#[test]
fn whole_reference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(WHOLE);
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: there is no {}", path.display());
        return;
    };
    let whole: Value = serde_json::from_str(&text).unwrap();
    let checked = check_chains(&whole["chains"]) + check_chains(&whole["small"]);
    check_uniform(&whole["uniform"]);
    println!("{checked} cases");
}

/// Forwards that Revolve takes, without the recording ones: r l - C(s + r, r - 1).
#[test]
fn revolve_counts_of_the_reference() {
    let extract: Value = serde_json::from_str(EXTRACT).unwrap();
    for entry in extract["revolve_counts"].as_array().unwrap() {
        let of = |name: &str| entry[name].as_u64().unwrap() as usize;
        let schedule = rekindle_plan::planner::revolve(of("n"), of("s")).unwrap();
        let forwards: usize = schedule.forward_counts().iter().sum();
        assert_eq!(forwards - of("n"), of("closed_t"));
        assert_eq!(forwards, of("optimal_steps_binomial"));
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
