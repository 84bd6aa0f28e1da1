//! `estimate` says beforehand what `train` does: within a budget that fits, it runs and stays there; another is refused.

use std::path::Path;

use serde_json::Value;

use crate::support::{document, messages, rekindle};

/// Share by which estimates by shapes may miss the smallest budget of a training. Observed: up to 2%.
const MISSED: f64 = 0.03;

/// Shares of the plain peak.
const SHARES: [&str; 3] = ["90%", "60%", "35%"];

#[test]
fn estimates_of_small_configs_are_right() {
    agree(
        &[
            ("parity/conv", &[]),
            ("parity/gpt", &[]),
            ("parity/mlp", &[]),
            ("parity/tokens", &["--update", "in-backward"]),
        ],
        // What a thread keeps for products depends on its cache, and may be nearly all that these take.
        &["100%", "75%", "35%"],
    );
}

#[test]
#[ignore = "takes ten minutes: `.ci/full` runs it"]
fn estimates_of_all_configs_are_right() {
    agree(
        &[
            ("parity/tokens", &[]),
            ("conv-pyramid", &["--batch", "8"]),
            ("deep-conv", &["--data", "synthetic", "--batch", "16"]),
            ("deep-linear", &[]),
            ("gpt", &["--batch", "4"]),
            ("gpt", &["--batch", "8", "--accumulate", "4"]),
            ("gpt", &["--batch", "8", "--accumulate", "auto"]),
            ("gpt", &["--batch", "4", "--loss-chunks", "whole"]),
            ("gpt-vocabulary", &["--batch", "1", "--depth", "1"]),
            ("keras-conv", &["--depth", "1"]),
            ("linear-1000", &["--batch", "1024", "--depth", "200"]),
            (
                "mlp-5000",
                &["--data", "synthetic", "--batch", "8", "--depth", "1"],
            ),
            ("resnet-deep", &["--batch", "1", "--depth", "1"]),
            ("vgg16", &["--batch", "1"]),
        ],
        &SHARES,
    );
}

fn agree(cases: &[(&str, &[&str])], shares: &[&str]) {
    let project = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut fits = [0, 0];
    let mut wrong = Vec::new();
    for (config, levers) in cases {
        let config = format!("configs/{config}.toml");
        for share in shares {
            let run = |command: &str, more: &[&str]| {
                let all = [command, &config, "--device", "cpu", "--budget", share];
                let output = rekindle(project, &[&all, *levers, more, &["--json"]].concat());
                let code = output.status.code();
                let said = messages(&output);
                assert!(matches!(code, Some(0 | 3)), "{config} {levers:?}: {said}");
                (code == Some(0), document(&output))
            };
            let (estimated, estimate) = run("estimate", &[]);
            let (ran, record) = run("train", &["--steps", "2"]);
            fits[usize::from(ran)] += 1;
            let bytes = |one: &Value, key: &str| one[key].as_f64().expect("bytes");
            let budget = bytes(&record, "budget_bytes");
            let smallest = match (estimated, ran) {
                (true, true) | (false, false) => None,
                (true, false) => Some(bytes(&record, "smallest_budget_bytes")),
                (false, true) => Some(bytes(&estimate, "smallest_budget_bytes")),
            };
            let disagree = smallest.is_some_and(|smallest| smallest > budget * (1.0 + MISSED));
            let exceeded = ran && bytes(&record, "measured_peak_bytes") > budget;
            if disagree || exceeded {
                wrong.push(format!(
                    "{config} {levers:?} in {share}: estimate {estimate}, train {record}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(fits.iter().all(|&each| each > 0), "{fits:?}");
}

#[test]
fn memory_grows_with_the_batch_and_parameters_do_not() {
    let project = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let at = |batch: &str| {
        let config = ["estimate", "configs/parity/conv.toml", "--device", "cpu"];
        document(&rekindle(
            project,
            &[&config[..], &["--batch", batch, "--json"]].concat(),
        ))
    };
    let (once, twice) = (at("8"), at("16"));
    let of = |one: &Value, key| one["plain"]["peak"][key].as_u64();
    assert_eq!(once["param_bytes"], twice["param_bytes"]);
    let state = [&once, &twice].map(|one| of(one, "optimizer_bytes"));
    assert_eq!(state[0], state[1]);
    assert_eq!(
        of(&once, "data_bytes").map(|one| 2 * one),
        of(&twice, "data_bytes")
    );
    assert!(of(&once, "activations_bytes") < of(&twice, "activations_bytes"));
}
