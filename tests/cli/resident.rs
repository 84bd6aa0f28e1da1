//! What the system holds in RAM for runs within budgets, as another process sees it.
#![cfg(target_os = "linux")]

use std::{fs, path::Path, thread, time::Duration};

use serde_json::Value;

use crate::support::{folder, program};

/// By how much memory beside the heap may grow after the first step began: stacks, pages of code, free small blocks.
const GROWTH: u64 = 2 << 20;

/// Trains for some steps; returns the record, and the most anonymous memory that was seen.
fn trained(config: &str, arguments: &[&str]) -> (Value, u64) {
    let config = format!("../../configs/{config}.toml");
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(config);
    let folder = folder(&fs::read_to_string(config).expect("a config"));
    let train = [
        "train",
        "run.toml",
        "--device",
        "cpu",
        "--no-eval",
        "--json",
    ];
    let train = [&train[..], &["--data", "synthetic"], arguments].concat();
    let record = folder.path().join("record");
    let mut running = program(folder.path(), &train)
        .stdout(fs::File::create(&record).expect("created"))
        .spawn()
        .expect("started");
    let status = format!("/proc/{}/status", running.id());
    let mut most = 0;
    let ended = loop {
        let status = fs::read_to_string(&status).unwrap_or_default();
        let anonymous = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = anonymous.and_then(|kib| kib.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        most = most.max(kib.unwrap_or(0) << 10);
        if let Some(ended) = running.try_wait().expect("waited for") {
            break ended;
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert!(ended.success(), "{ended}");
    let record = fs::read(record).expect("a record");
    (serde_json::from_slice(&record).expect("JSON"), most)
}

/// Checks runs of some configs against what the system holds for them.
fn check(configs: &[(&str, &[&str])]) {
    let bytes = |value: &Value| value.as_u64().expect("bytes");
    // Relocated data of the program, and stacks: they are no file's, and no heap's.
    let (tiny, anonymous) = trained("parity/mlp", &["--steps", "50"]);
    let own = anonymous.saturating_sub(bytes(&tiny["measured_peak_bytes"]));
    for (config, arguments) in configs {
        let (record, anonymous) = trained(config, arguments);
        let (budget, resident) = (bytes(&record["budget_bytes"]), &record["resident"]);
        let beside = bytes(&resident["beside_bytes"]);
        let peak = bytes(&resident["peak_bytes"]);
        let of = format!("{anonymous} with {own}, {peak} with {beside}, of {budget}");
        println!("{config}: {of}");
        assert!(anonymous <= budget + own + GROWTH, "{config}: {of}");
        assert!(peak <= budget + beside + GROWTH, "{config}: {of}");
        assert!(peak > anonymous, "{config}: {of}");
    }
}

#[test]
fn memory_stays_within_the_budget_by_the_systems_count() {
    check(&[("deep-linear", &["--steps", "3"])]);
}

#[test]
#[ignore = "takes half a minute: `.ci/full` runs it"]
fn so_it_does_with_attention_and_convolutions() {
    check(&[
        ("gpt", &["--steps", "3"]),
        ("conv-pyramid", &["--steps", "2", "--budget", "41MiB"]),
        ("deep-conv", &["--steps", "3", "--budget", "17.5MiB"]),
    ]);
}
