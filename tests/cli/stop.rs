//! Runs that are stopped, and runs that go on.
#![cfg(unix)]

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    history::losses,
    signal::{Running, signalled},
    support::{document, folder, messages, program, rekindle},
};

const MLP: &str = include_str!("../../configs/parity/mlp.toml");

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

/// SIGHUP, or SIGTERM where what started the tests ignores it, as `nohup` does: children ignore it, too.
fn hangup() -> &'static str {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    if ignored.is_some_and(|mask| mask & 1 == 1) {
        eprintln!("skipped: SIGHUP is ignored here; SIGTERM is sent in its place");
        return "-TERM";
    }
    "-HUP"
}

#[test]
fn what_a_session_ends_with_stops_as_an_interrupt_does() {
    for signal in ["-TERM", hangup()] {
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
    let project = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let verify = ["verify", "configs/deep-linear.toml", "--steps", "1000"];
    let verify = [&verify[..], &["--device", "cpu"]].concat();
    let output = signalled(project, &verify, |line| line.contains("on cpu"), "-INT");
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted: nothing was written"), "{said}");
}

/// A pipe as the config: the command waits for its text, which never comes.
#[test]
fn a_blocked_read_is_interrupted() {
    let folder = TempDir::new().expect("a folder");
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo").success());
    let commands: [(&str, &[&str]); 2] = [
        (hangup(), &["plan", "--chain", "pipe", "--budget", "1MiB"]),
        // What ends a command is no note.
        ("-INT", &["estimate", "pipe", "--quiet"]),
    ];
    for (signal, arguments) in commands {
        let running = Running::start(&mut program(folder.path(), arguments));
        // Opens once the command has opened it, too.
        let writer = File::options().write(true).open(&pipe).expect("opened");
        running.send(signal, 1);
        let output = running.end();
        drop(writer);
        let said = messages(&output);
        assert_eq!(output.status.code(), Some(130), "{arguments:?}: {said}");
        assert!(said.contains("interrupted: nothing was written"), "{said}");
    }
}

#[test]
fn a_run_that_is_measured_is_interrupted_at_once() {
    let project = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let train = ["train", "configs/deep-linear.toml", "--device", "cpu"];
    let output = signalled(project, &train, |line| line.contains("on cpu"), "-TERM");
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted: nothing was written"), "{said}");
}

#[test]
fn signals_in_a_row_leave_a_snapshot() {
    let folder = folder(MLP);
    let endless = ["train", "run.toml", "--steps", "100000000"];
    let arguments = [&endless[..], &["--device", "cpu", "-o", "run"]].concat();
    let mut running = Running::start(&mut program(folder.path(), &arguments));
    running.read_to(|line| line.starts_with("step "));
    running.send("-TERM", 3);
    let output = running.end();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("rekindle train --resume"), "{said}");
    assert_eq!(record(&folder, "run")["interrupted"], true);
}

/// An evaluation of a thousand million samples, after the last step.
#[test]
fn a_long_evaluation_is_interrupted_and_done_when_the_run_goes_on() {
    let config = |samples: &str| {
        format!(
            "[data]\nsynthetic = {{ shape = [8], target = {{ classes = 3 }}, samples = {samples} }}\n\
             [model]\nlayers = [{{ linear = {{ out = 3 }} }}]\n[train]\nsteps = 2\nbatch = 4\neval_split = 0.5\n"
        )
    };
    let folder = folder(&config("2_000_000_000"));
    let arguments = ["train", "run.toml", "--device", "cpu", "-o", "run"];
    let ends = |line: &str| line.starts_with("step 2/2");
    let output = signalled(folder.path(), &arguments, ends, "-INT");
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted after step 2 of 2"), "{said}");
    let kept = record(&folder, "run");
    assert_eq!(
        (&kept["interrupted"], &kept["steps"]),
        (&true.into(), &2.into())
    );
    assert_eq!(kept["evaluation"], Value::Null);
    // The evaluation is still due.
    let resume = ["train", "--resume", "run"];
    let planned = |line: &str| line.starts_with("plan");
    let output = signalled(folder.path(), &resume, planned, "-TERM");
    assert_eq!(output.status.code(), Some(130), "{}", messages(&output));
}

/// `nohup` ignores SIGHUP: the run outlives its terminal.
#[cfg(target_os = "linux")]
#[test]
fn a_hangup_that_is_ignored_stops_nothing() {
    let folder = folder(MLP);
    let run = ["train", "run.toml", "--device", "cpu", "--steps", "2000"];
    let mut ignoring = crate::shell::after("trap '' HUP", folder.path(), &run);
    let mut running = Running::start(&mut ignoring);
    running.read_to(|line| line.starts_with("step "));
    running.send("-HUP", 1);
    let output = running.end();
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
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

    let refused = || {
        let refused = on(&["--steps", "9"]);
        assert_eq!(refused.status.code(), Some(2));
        let said = messages(&refused);
        assert!(said.contains("rekindle train CONFIG --resume"), "{said}");
    };
    // As an older version has written it.
    let command = folder.path().join("part/command.json");
    let text = fs::read_to_string(&command).expect("kept");
    fs::write(&command, text.replace("command/2", "command/1")).expect("written");
    refused();
    fs::remove_file(&command).expect("removed");
    refused();
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
