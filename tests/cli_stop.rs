//! Runs that are stopped, and runs that go on.
#![cfg(unix)]

#[path = "support/history.rs"]
mod history;
#[path = "support/signal.rs"]
mod signal;
mod support;

use std::{fs, path::Path};

use serde_json::Value;
use tempfile::TempDir;

use self::{
    history::losses,
    signal::signalled,
    support::{document, folder, messages, rekindle},
};

const MLP: &str = include_str!("../configs/parity/mlp.toml");

fn record(folder: &TempDir, run: &str) -> Value {
    let text = fs::read(folder.path().join(run).join("run.json")).expect("a record");
    serde_json::from_slice(&text).expect("JSON")
}

/// Starts an endless run in `run` and sends it a signal after its first step: what it said, and what it showed.
fn stopped_by(signal: &str, folder: &TempDir) -> (String, String) {
    let endless = ["train", "run.toml", "--steps", "100000000"];
    let arguments = [&endless[..], &["--device", "cpu", "-o", "run"]].concat();
    let stepped = |line: &str| line.starts_with("step ");
    let output = signalled(folder.path(), &arguments, stepped, signal);
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    (said, String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn what_a_session_ends_with_stops_as_an_interrupt_does() {
    for signal in ["-TERM", "-HUP"] {
        let folder = folder(MLP);
        let (said, text) = stopped_by(signal, &folder);
        assert!(said.contains("rekindle train --resume"), "{said}");
        assert!(text.contains("peak memory"), "{text}");
        let record = record(&folder, "run");
        assert_eq!(record["interrupted"], true);
        let snapshot = format!("run/snapshot-{}", record["steps"]);
        assert!(folder.path().join(snapshot).is_file(), "{signal}");
    }
}

#[test]
fn an_interrupt_stops_after_the_step_and_still_reports() {
    let folder = folder(MLP);
    let (said, text) = stopped_by("-INT", &folder);
    assert!(said.contains("rekindle train --resume"), "{said}");
    assert!(
        text.contains("peak memory") && text.contains("Loss"),
        "{text}"
    );

    // The line that it has printed, and an end that can be waited for.
    let before = record(&folder, "run");
    let steps = before["steps"].as_u64().expect("steps") + 2;
    let steps_typed = steps.to_string();
    let on = [
        "train",
        "--resume",
        "run",
        "--steps",
        &steps_typed,
        "--json",
    ];
    let after = document(&rekindle(folder.path(), &on));
    assert_eq!(after["steps"], steps);
    assert_eq!(after["resumed_at"], before["steps"]);
    assert_eq!(after["interrupted"], false);
}

#[test]
fn an_interrupt_of_what_keeps_nothing_is_said() {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    for arguments in [
        &["verify", "configs/deep-linear.toml", "--steps", "1000"][..],
        &["plan", "configs/deep-linear.toml", "--executor", "modules"],
    ] {
        let arguments = [arguments, &["--device", "cpu"]].concat();
        let started = |line: &str| line.contains("on cpu");
        let output = signalled(project, &arguments, started, "-INT");
        let said = messages(&output);
        assert_eq!(output.status.code(), Some(130), "{said}");
        assert!(said.contains("interrupted: nothing was written"), "{said}");
    }
}

#[test]
fn a_run_goes_on_with_what_it_was_started_with() {
    let folder = folder(MLP);
    let start = |steps: &str, output: &str| {
        let typed = ["--seed", "7", "--batch", "16", "--segments", "4"];
        let run = [
            "train", "run.toml", "-o", output, "--json", "--steps", steps,
        ];
        document(&rekindle(folder.path(), &[&run[..], &typed].concat()))
    };
    start("6", "whole");
    start("4", "part");
    let written = || fs::read(folder.path().join("part/run.json")).expect("a record");
    let kept = written();

    // Another folder than the one that it was started in.
    let elsewhere = TempDir::new().expect("a folder");
    let part = folder.path().join("part").display().to_string();
    let on = |arguments: &[&str]| {
        let resume = ["train", "--resume", &part];
        rekindle(elsewhere.path(), &[&resume[..], arguments].concat())
    };
    let finished = on(&[]);
    assert!(finished.status.success());
    let said = messages(&finished);
    assert!(said.contains("nothing is left to do"), "{said}");
    assert_eq!(written(), kept);

    let more = document(&on(&["--steps", "6", "--json"]));
    let losses = |run: &str| losses(&folder.path().join(run));
    assert_eq!(losses("part"), losses("whole"));
    assert_eq!(more["resumed_at"], 4);
    assert_eq!(more["segments"].as_array().map(Vec::len), Some(4));
    // Another schedule for what is left.
    let other = document(&on(&["--steps", "8", "--planner", "none", "--json"]));
    assert_eq!(other["planner"], "none");

    fs::remove_file(folder.path().join("part/command.json")).expect("removed");
    let refused = on(&["--steps", "9"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = messages(&refused);
    assert!(said.contains("name the CONFIG"), "{said}");
}

/// A planner that is typed when a run goes on searches within the budget that the run was started with.
#[test]
fn a_planner_alone_keeps_the_budget() {
    let folder = folder(MLP);
    let start = [
        "train", "run.toml", "-o", "run", "--budget", "64MiB", "--steps", "2",
    ];
    assert!(rekindle(folder.path(), &start).status.success());
    let on = [
        "train",
        "--resume",
        "run",
        "--steps",
        "3",
        "--planner",
        "optimal",
        "--json",
    ];
    let record = document(&rekindle(folder.path(), &on));
    assert_eq!(record["budget_bytes"], 64 << 20);
}
