//! The examples run. Those of recorded steps stay within their budgets: each checks that itself.
//!
//! `cargo test` builds the examples. Where one test target is named, it does not: `cargo build --examples` first.
//! `learner` is run where it is built: with the feature of that name.

use std::{env, path::PathBuf, process::Command};

const EXAMPLES: [&str; 11] = [
    "vgg",
    "unet",
    "gpt",
    "finetune",
    "recurrent",
    "seq2seq_attention",
    "budget",
    "deep_linear",
    "deep_conv",
    "custom_loop",
    "encoder_decoder",
];

/// Where cargo puts examples: beside the folder of the tests.
fn folder() -> PathBuf {
    let test = env::current_exe().expect("a test has a path");
    let profile = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("`deps` is in a folder");
    profile.join("examples")
}

#[test]
fn examples_stay_within_their_budgets() {
    let learner = cfg!(feature = "learner").then_some("learner");
    for name in EXAMPLES.into_iter().chain(learner) {
        let program = folder()
            .join(name)
            .with_extension(env::consts::EXE_EXTENSION);
        assert!(
            program.exists(),
            "{} is not built: run `cargo build --examples`",
            program.display()
        );
        let output = Command::new(program).output().expect("started");
        let said = String::from_utf8_lossy(&output.stdout);
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}{wrong}");
        let recorded = name != "encoder_decoder";
        assert!(!recorded || said.contains("budget"), "{name}: {said}");
    }
}

#[test]
fn examples_with_one_subject_are_short() {
    for name in EXAMPLES.into_iter().chain(["learner"]) {
        let file = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("examples")
            .join(name)
            .with_extension("rs");
        let text = std::fs::read_to_string(file).expect("read");
        let lines = text.lines().count();
        assert!(
            lines < 100 || ["encoder_decoder", "seq2seq_attention"].contains(&name),
            "{name}: {lines} lines"
        );
    }
}
