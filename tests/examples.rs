//! The examples run. Those of recorded steps stay within their budgets: each checks that itself.
//!
//! `cargo test` builds the examples. Where one test target is named, it does not: `cargo build --examples` first.
//! `learner` and `data_parallel` are run where they are built: with the features `learner` and `mpi`. The latter needs
//! `mpirun` too.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const OTHERS: [&str; 7] = [
    "vgg",
    "finetune",
    "recurrent",
    "seq2seq_attention",
    "budget",
    "custom_loop",
    "encoder_decoder",
];

/// How far losses of several ranks may be from those of one, relative: sums of 32-bit values in another order.
const TOLERANCE: f32 = 1e-5;

/// How long a job may go on when one of its ranks is gone. `mpirun` takes about a second.
const HANGS: Duration = Duration::from_secs(120);

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

/// The example of ranks, by so many of them, where there is MPI.
fn ranks(count: usize) -> Option<Command> {
    let found = Command::new("mpirun").arg("--version").output();
    if !cfg!(feature = "mpi") || found.is_err() {
        eprintln!("skipped: needs the feature `mpi`, and `mpirun`");
        return None;
    }
    let mut command = Command::new("mpirun");
    // More ranks than cores, and root, as in containers.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["--oversubscribe", "-n", &count.to_string()]);
    command.arg(program("data_parallel"));
    Some(command)
}

#[test]
fn ranks_print_the_losses_of_one_process() {
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
    // An odd number: shares of the batch differ. `ranks` has two.
    let Some(mut several) = ranks(3) else {
        return;
    };
    let alone = losses(&mut Command::new(program("data_parallel")));
    let (shared, again) = (losses(&mut several), losses(&mut several));
    assert_eq!((alone.len(), shared.len()), (20, 20), "one rank prints");
    for (alone, shared) in alone.iter().zip(&shared) {
        let error = (alone - shared).abs() / alone;
        assert!(error <= TOLERANCE, "{alone}, {shared}");
    }
    assert_eq!(
        shared, again,
        "the same number of ranks gives the same bits"
    );
}

#[test]
fn a_killed_rank_ends_the_others() {
    let Some(mut job) = ranks(3) else {
        return;
    };
    let mut job = job
        .arg("1000000")
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut lines = BufReader::new(job.stdout.take().expect("piped")).lines();
    let first = lines.next().expect("a line").expect("text");
    assert!(first.starts_with("step 0"), "{first}");
    let ranks = children(&job);
    assert_eq!(ranks.len(), 3);
    let killed = Command::new("kill").args(["-9", &ranks[1]]).status();
    assert!(killed.expect("kill").success());
    // What is printed is read, or the job would wait for it.
    let rest = thread::spawn(move || lines.count());
    let started = Instant::now();
    let id = job.id().to_string();
    let running = || ranks.iter().chain([&id]).any(|process| runs(process));
    while running() && started.elapsed() < HANGS {
        thread::sleep(Duration::from_millis(20));
    }
    let hangs = running();
    if hangs {
        job.kill().expect("killed");
    }
    let status = job.wait().expect("a child");
    assert!(
        !hangs,
        "the job goes on without one of its ranks: {ranks:?}"
    );
    eprintln!("ended {:?} after a rank", started.elapsed());
    assert!(!status.success());
    rest.join().expect("read");
}

/// Whether a process is there that has not ended.
fn runs(id: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/stat"));
    let state = status
        .ok()
        .and_then(|text| text.rsplit_once(") ")?.1.chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// The processes that a process has started.
fn children(of: &Child) -> Vec<String> {
    let id = of.id();
    let text = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let text = text.expect("Linux tells");
    text.split_whitespace().map(str::to_owned).collect()
}

fn stays_within_its_budget(name: &str) {
    let output = Command::new(program(name)).output().expect("started");
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

/// A transformer.
#[test]
fn gpt_stays_within_its_budget() {
    stays_within_its_budget("gpt");
}

/// Skips over many layers.
#[test]
fn unet_stays_within_its_budget() {
    stays_within_its_budget("unet");
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
    let others = [
        "deep_linear",
        "deep_conv",
        "gpt",
        "unet",
        "learner",
        "data_parallel",
    ];
    for name in OTHERS.into_iter().chain(others) {
        let file = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("examples")
            .join(name)
            .with_extension("rs");
        let text = fs::read_to_string(file).expect("read");
        let lines = text.lines().count();
        assert!(
            lines < 100 || ["encoder_decoder", "seq2seq_attention"].contains(&name),
            "{name}: {lines} lines"
        );
    }
}
