//! The examples run. Those of recorded steps stay within their budgets: each checks that itself.
//!
//! `cargo test` builds the examples. Where one test target is named, it does not: `cargo build --examples` first.
//! `learner` and `data_parallel` are run where they are built: with the features `learner` and `mpi`. The latter needs
//! `mpirun` too.

use std::{
    collections::HashSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

const OTHERS: [&str; 7] = [
    "gpt",
    "unet",
    "finetune",
    "recurrent",
    "budget",
    "custom_loop",
    "encoder_decoder",
];

/// How far losses of several ranks may be from those of one, relative: sums of 32-bit values in another order.
const TOLERANCE: f32 = 1e-5;

/// Where cargo puts examples: beside the folder of the tests.
fn program(name: &str) -> PathBuf {
    let test = env::current_exe().expect("a test has a path");
    let profile = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("`deps` is in a folder");
    let program = profile.join("examples").join(name);
    let program = program.with_extension(env::consts::EXE_EXTENSION);
    assert!(
        program.exists(),
        "{} is not built: run `cargo build --examples`",
        program.display()
    );
    program
}

/// `mpirun`, where it is there and the example of ranks is built.
fn mpirun() -> Option<Command> {
    let found = Command::new("mpirun").arg("--version").output();
    if !cfg!(feature = "mpi") || found.is_err() {
        eprintln!("skipped: needs the feature `mpi`, and `mpirun`");
        return None;
    }
    let mut command = Command::new("mpirun");
    // More ranks than cores, and root, as in containers.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.arg("--oversubscribe");
    Some(command)
}

#[test]
fn ranks_print_the_losses_of_one_process() {
    const STEPS: &str = "6";
    let losses = |command: &mut Command| -> Vec<f32> {
        let output = command.output().expect("started");
        let said = String::from_utf8_lossy(&output.stdout);
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}{wrong}");
        eprint!("{wrong}");
        let losses = said.lines().filter_map(|line| line.split_once(": loss "));
        losses
            .map(|(_, loss)| loss.parse().expect("a number"))
            .collect()
    };
    let Some(mut several) = mpirun() else {
        return;
    };
    let program = program("data_parallel");
    let alone = losses(Command::new(&program).arg(STEPS));
    // An odd number: shares of the batch differ. `ranks` has two.
    let shared = losses(several.args(["-n", "3"]).arg(&program).arg(STEPS));
    assert_eq!((alone.len(), shared.len()), (6, 6), "one rank prints");
    for (alone, shared) in alone.iter().zip(&shared) {
        let error = (alone - shared).abs() / alone;
        assert!(error <= TOLERANCE, "{alone}, {shared}");
    }
}

/// On two threads: each keeps scratch, of which machines with many processors need more than the small budgets here.
fn stays_within_its_budget(name: &str) {
    let mut example = Command::new(program(name));
    let output = example
        .env("RAYON_NUM_THREADS", "2")
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stdout);
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}{wrong}");
    let recorded = name != "encoder_decoder";
    assert!(!recorded || said.contains("budget"), "{name}: {said}");
}

#[test]
fn deep_linear_stays_within_its_budget() {
    stays_within_its_budget("deep_linear");
}

#[test]
fn deep_conv_stays_within_its_budget() {
    stays_within_its_budget("deep_conv");
}

/// Of a text whose bytes count up, each window does, and is followed by the next number.
#[test]
fn batches_are_windows_and_what_follows() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("text"), (0..=255).collect::<Vec<u8>>()).expect("written");
    let config =
        "[data.text]\nfiles = [\"text\"]\nwindow = 8\n[train]\nbatch = 4\neval_split = 0.0\n";
    fs::write(at("config.toml"), config).expect("written");
    let mut batches = Command::new(program("batches"));
    let batches = batches.arg(at("config.toml")).arg("2").arg(at("batches"));
    assert!(batches.status().expect("started").success());

    let file = fs::read(at("batches")).expect("read");
    let (length, file) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("8 bytes"));
    let (header, values) = file.split_at(length as usize);
    let header: Value = serde_json::from_slice(header).expect("JSON");
    let expected = json!({
        "inputs": { "dtype": "I32", "shape": [2, 4, 8], "data_offsets": [0, 256] },
        "targets": { "dtype": "I32", "shape": [2, 4], "data_offsets": [256, 288] },
    });
    assert_eq!(header, expected);
    let ids = values
        .chunks(4)
        .map(|id| i32::from_le_bytes(id.try_into().expect("4 bytes")));
    let ids: Vec<i32> = ids.collect();
    let (inputs, targets) = ids.split_at(64);
    for (window, target) in inputs.chunks(8).zip(targets) {
        let counted: Vec<i32> = (target - 8..*target).collect();
        assert_eq!(window, counted);
    }
    let different: HashSet<&i32> = targets.iter().collect();
    assert_eq!(different.len(), 8, "an epoch shows no window twice");
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn other_examples_stay_within_their_budgets() {
    OTHERS.into_iter().for_each(stays_within_its_budget);
    if cfg!(feature = "learner") {
        stays_within_its_budget("learner");
    }
}

#[test]
fn examples_with_one_subject_are_short() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"));
    for entry in fs::read_dir(folder).expect("examples") {
        let path = entry.expect("an entry").path();
        let lines = fs::read_to_string(&path).expect("read").lines().count();
        assert!(
            lines < 100 || path.ends_with("encoder_decoder.rs"),
            "{}: {lines} lines",
            path.display()
        );
    }
}
