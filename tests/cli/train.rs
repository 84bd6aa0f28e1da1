//! The binary from end to end: training, budgets, verification, devices.

use std::{path::Path, process::Output};

use serde_json::Value;

use crate::support::{document, messages, rekindle};

const MLP: &str = "configs/parity/mlp.toml";

/// Runs the program at the top of the repository, to this exit code.
fn ended(code: i32, arguments: &[&str]) -> Output {
    let project = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let output = rekindle(project, arguments);
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    output
}

fn json(arguments: &[&str]) -> Value {
    document(&ended(0, arguments))
}

fn bytes(record: &Value, key: &str) -> u64 {
    record[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} in {record}"))
}

/// Share of the measured peak by which the prediction may miss it: 1.4% was seen. Nearly all of so small a run is what
/// kernels and the process keep, which differs from machine to machine.
const PEAK_TOLERANCE: f64 = 0.05;

#[test]
fn training_reports_what_was_promised_and_what_was_measured() {
    let record = json(&[
        "train",
        "configs/parity/mlp.toml",
        "--segments",
        "4",
        "--device",
        "cpu",
        "--json",
    ]);
    assert_eq!(record["planner"], "segments");
    assert_eq!(record["device"], "cpu");
    assert_eq!(record["steps"], 3);
    assert_eq!(record["segments"].as_array().map(Vec::len), Some(4));
    // 24 values through six layers of 48 and a norm to 8, as weights, gradients and Adam's two moments in f32, and a
    // batch of 32 with its targets.
    let params = (24 + 1) * 48 + 5 * (48 + 1) * 48 + 2 * 48 + (48 + 1) * 8;
    assert_eq!(bytes(&record, "param_count"), params);
    let resident = 4 * (4 * params + 32 * (24 + 8));
    let measured = bytes(&record, "measured_peak_bytes");
    assert!(measured > resident, "{measured} with {resident} of state");
    // The whole process, with the program itself.
    if cfg!(target_os = "linux") {
        assert!(bytes(&record["resident"], "peak_bytes") > measured);
    }
    let predicted = bytes(&record, "predicted_peak_bytes");
    let miss = predicted as f64 / measured as f64 - 1.0;
    assert!(miss.abs() < PEAK_TOLERANCE, "{predicted} for {measured}");
    for number in [
        "predicted_step_s",
        "measured_step_s",
        "first_loss",
        "last_loss",
    ] {
        assert!(
            record[number].as_f64().is_some_and(f64::is_finite),
            "{number}"
        );
    }
    assert_eq!(record["budget_bytes"], Value::Null);
    // Too short a run to be compared.
    assert_eq!(record["plain"], Value::Null);
}

#[test]
fn the_plain_peak_grows_by_what_each_sample_keeps() {
    let peak = |batch: &str| {
        let plain = ["train", MLP, "--planner", "none", "--steps", "2"];
        let batch = ["--batch", batch, "--device", "cpu", "--json"];
        bytes(&json(&[&plain[..], &batch].concat()), "measured_peak_bytes")
    };
    // The sample and its target, and the outputs of six layers and six activations, in f32. Besides there are what the
    // norm keeps, and the largest gradients.
    let each = 4 * (24 + 8 + 12 * 48);
    let grown = (peak("128") - peak("32")) / 96;
    assert!(
        (each..2 * each).contains(&grown),
        "{grown} bytes a sample, of which {each} are known"
    );
}

/// The last arguments in backticks that an error advises.
fn advised(message: &str) -> Vec<String> {
    let words = message.replace('|', " ");
    let advice = words.split('`').rfind(|part| part.starts_with("--"));
    let advice = advice.unwrap_or_else(|| panic!("no advice in {message}"));
    advice.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn advice_for_a_planner_that_cannot_is_followed() {
    let plan = [
        "plan",
        "configs/parity/conv.toml",
        "--batch",
        "32",
        "--device",
        "cpu",
    ];
    let asked = [&plan[..], &["--planner", "segments", "--budget", "1kB"]].concat();
    let advised = advised(&messages(&ended(3, &asked)));
    let advised: Vec<&str> = advised.iter().map(String::as_str).collect();
    ended(0, &[&plan[..], &advised].concat());
}

#[test]
fn a_comparison_measures_what_the_plain_run_takes() {
    let plain = json(&[
        "train",
        MLP,
        "--planner",
        "none",
        "--batch",
        "128",
        "--json",
    ]);
    let arguments = ["--segments", "4", "--batch", "128", "--compare", "--json"];
    let compared = json(&[&["train", MLP][..], &arguments].concat());
    assert!(compared["plain"]["measured_step_s"].as_f64() > Some(0.0));
    // The run has its history and its phases beside it.
    let (wanted, found) = (
        bytes(&plain, "measured_peak_bytes") as f64,
        bytes(&compared["plain"], "measured_peak_bytes") as f64,
    );
    assert!((found / wanted - 1.0).abs() < 0.03, "{found} for {wanted}");
    let own = bytes(&compared, "measured_peak_bytes");
    assert!(own < found as u64);
    // Steps by the plan and plain ones took turns, and each kept its own peak.
    let turns = compared["turns"].as_array().expect("turns");
    assert!(turns.len() > 1, "{compared}");
    for turn in turns {
        let peak = |of| bytes(&turn[of], "measured_peak_bytes");
        assert!(peak("planned") < peak("plain"), "{turn}");
    }

    let (predicted, plain) = ("predicted_peak_bytes", "plain_peak_bytes");
    let budget = bytes(&compared, predicted).midpoint(bytes(&compared, plain));
    let typed = format!("{budget}B");
    let arguments = ["--budget", &typed, "--batch", "128", "--compare", "--json"];
    let within = json(&[&["train", MLP][..], &arguments].concat());
    for turn in within["turns"].as_array().expect("turns") {
        assert!(bytes(&turn["planned"], "measured_peak_bytes") <= budget);
        assert!(bytes(&turn["plain"], "measured_peak_bytes") > budget);
    }
}

#[test]
fn a_long_run_is_compared_with_plain_steps_of_another_process() {
    let long = json(&["train", MLP, "--segments", "4", "--steps", "600", "--json"]);
    let plain = &long["plain"];
    let range = plain["step_range_s"].as_array().expect("two times");
    let (least, most) = (range[0].as_f64(), range[1].as_f64());
    let median = plain["measured_step_s"].as_f64();
    assert!(least <= median && median <= most, "{plain}");
    assert_eq!(long["steps"], 600);
}

#[test]
fn verification_finds_no_difference() {
    verifies(&[("conv", &[]), ("gpt", &[])]);
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn verification_of_other_models_finds_no_difference() {
    verifies(&[
        ("mlp", &[]),
        ("tokens", &[]),
        ("gpt", &["--update", "in-backward"]),
        ("gpt", &["--loss-chunks", "whole"]),
    ]);
}

fn verifies(cases: &[(&str, &[&str])]) {
    for &(config, more) in cases {
        let path = format!("configs/parity/{config}.toml");
        let arguments = ["verify", &path, "--device", "cpu", "--json"];
        let report = json(&[&arguments[..], more].concat());
        assert_eq!(report["passed"], true, "{config}: {report}");
        let comparisons = report["comparisons"].as_array().expect("comparisons");
        assert!(comparisons.len() >= 3, "{report}");
        assert!(
            comparisons
                .iter()
                .all(|comparison| comparison["identical"] == true),
            "{report}"
        );
    }
}

#[test]
fn the_processor_is_always_there() {
    let report = json(&["devices", "--json"]);
    let devices = report["devices"].as_array().expect("devices");
    let cpu = devices.iter().find(|device| device["device"] == "cpu");
    assert!(
        cpu.is_some_and(|cpu| bytes(cpu, "total_bytes") > 0),
        "{report}"
    );
}

#[test]
fn a_budget_that_the_plain_run_fits_is_remarked_on() {
    let output = ended(0, &["train", MLP, "--budget", "1GiB", "--device", "cpu"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("Nothing was recomputed"), "{text}");
}

#[test]
fn a_dtype_halves_the_bytes_and_a_plan_for_another_is_refused() {
    let estimate = |dtype: &str| json(&["estimate", MLP, "--dtype", dtype, "--json"]);
    let (f32, bf16) = (estimate("f32"), estimate("bf16"));
    let parameters = |one| bytes(one, "param_bytes");
    assert_eq!(parameters(&f32), 2 * parameters(&bf16));
    // Targets are `f32` either way.
    let data = |one: &Value| bytes(&one["plain"]["peak"], "data_bytes");
    assert!(data(&f32) > data(&bf16));
    // What the loss keeps is `f32` either way.
    let saved = [&f32, &bf16].map(|one| bytes(one, "saved_bytes"));
    assert!(saved[1] * 10 < saved[0] * 6, "{saved:?}");

    let folder = tempfile::tempdir().expect("a folder");
    let plan = folder.path().join("plan.json");
    let plan = plan.to_str().expect("text");
    let on_cpu = ["--device", "cpu"];
    let planned = ["plan", MLP, "--segments", "2", "-o", plan];
    ended(0, &[&planned[..], &on_cpu].concat());
    let train = [&["train", MLP, "--plan", plan, "--json"][..], &on_cpu].concat();
    assert_eq!(json(&train)["settings"]["dtype"], "f32");
    let refused = messages(&ended(2, &[&train[..], &["--dtype", "bf16"]].concat()));
    assert!(refused.contains("another model"), "{refused}");
}

#[test]
fn a_plan_counts_what_a_run_holds() {
    // Parameters are a quarter of it.
    let arguments = |command| {
        let config = [
            "configs/deep-linear.toml",
            "--batch",
            "64",
            "--planner",
            "none",
        ];
        [&[command][..], &config, &["--device", "cpu", "--json"]].concat()
    };
    let plan = bytes(&json(&arguments("plan")), "predicted_peak_bytes") as f64;
    let train = [&arguments("train")[..], &["--steps", "1"]].concat();
    let train = bytes(&json(&train), "predicted_peak_bytes") as f64;
    assert!(
        (plan / train - 1.0).abs() < 0.02,
        "{plan} planned, {train} in a run"
    );
}

/// A small transformer whose logits are most of its memory: 512 tokens of 4,096 classes, 64 values each.
const TOKENS: &str = r#"
[data]
synthetic = { shape = [32], vocab = 4096, target = { token_classes = 4096 }, samples = 256 }

[model]
layers = [
  { embedding = { dim = 64 } },
  "positions",
  { residual = ["layer_norm", { attention = { heads = 2 } }] },
  { linear = { out = 4096 } },
]

[train]
batch = 16
steps = 2
loss_chunks = "auto"
"#;

#[test]
fn a_loss_in_chunks_holds_no_logits() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("tokens.toml");
    std::fs::write(&config, TOKENS).expect("written");
    let config = config.to_str().expect("a path of text");
    let train = |more: &[&str]| {
        let arguments = ["train", config, "--device", "cpu", "--json"];
        let record = json(&[&arguments[..], more].concat());
        let [predicted, measured] =
            ["predicted_peak_bytes", "measured_peak_bytes"].map(|key| bytes(&record, key));
        let error = predicted as f64 / measured as f64 - 1.0;
        assert!(
            (-0.002..0.03).contains(&error),
            "{predicted} for {measured}"
        );
        (measured, record)
    };
    let logits = 512 * 4_096 * 4;
    let (whole, by_all) = train(&["--loss-chunks", "whole"]);
    let (chunked, by_chunks) = train(&[]);
    // The logits' exponentials are kept besides, and their gradient is made.
    assert!(chunked + 2 * logits < whole, "{chunked} instead of {whole}");
    for key in ["first_loss", "last_loss"] {
        let [one, other] =
            [&by_all, &by_chunks].map(|record| record[key].as_f64().expect("a loss"));
        assert!((one - other).abs() < 1e-5 * one, "{key}: {one} and {other}");
    }
    // Counted from shapes, in the same proportion, also with updates in the backward pass.
    let counted = |chunks: &str| {
        let arguments = ["estimate", config, "--loss-chunks", chunks];
        let more = ["--update", "in-backward", "--device", "cpu", "--json"];
        let estimate = json(&[&arguments[..], &more].concat());
        bytes(&estimate["plain"], "predicted_peak_bytes")
    };
    let (counted_whole, counted_chunked) = (counted("whole"), counted("auto"));
    assert!(
        counted_chunked + logits < counted_whole,
        "{counted_chunked}, {counted_whole}"
    );
    // No plan makes room for logits in a budget that has none for them.
    let budget = format!("{}B", chunked + logits / 4);
    let arguments = [
        "train",
        config,
        "--device",
        "cpu",
        "--loss-chunks",
        "whole",
        "--budget",
    ];
    ended(3, &[&arguments[..], &[&budget]].concat());
    let (within, record) = train(&["--budget", &budget]);
    assert!(within <= bytes(&record, "budget_bytes"), "{record}");
    assert_eq!(record["last_loss"], by_chunks["last_loss"]);
}

#[test]
fn a_loss_that_cannot_run_in_chunks_is_refused() {
    let refused = |arguments: &[&str]| messages(&ended(2, arguments));
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("relu.toml");
    let text = TOKENS.replace("out = 4096 } },", "out = 4096 } }, \"relu\",");
    std::fs::write(&config, text).expect("written");
    let message = refused(&["plan", config.to_str().expect("a path of text")]);
    assert!(message.contains("not `relu`"), "{message}");
    let message = refused(&["plan", MLP, "--loss-chunks", "0"]);
    assert!(
        message.contains("`loss_chunks` must be at least 1"),
        "{message}"
    );
}

/// The program with the smallest peak is not the one to measure: of 1,000 layers it has 40 times the operations, and its
/// list alone is larger than these budgets. Nor may a plan over stages be made before the step: that takes more than the step.
#[test]
fn a_thousand_layers_train_within_a_small_budget() {
    for (batch, mib) in [(1024, 34), (4096, 40)] {
        let record = json(&[
            "train",
            "configs/linear-1000.toml",
            "--batch",
            &batch.to_string(),
            "--steps",
            "1",
            "--budget",
            &format!("{mib}MiB"),
            "--device",
            "cpu",
            "--json",
        ]);
        let plain = bytes(&record, "plain_peak_bytes");
        // Each layer's output, 10 numbers for each sample, is kept in the plain step.
        assert!(plain > 1000 * 10 * batch * 4, "{plain}");
        let peak = bytes(&record, "measured_peak_bytes");
        assert!(peak <= mib << 20, "{peak} bytes");
    }
}
