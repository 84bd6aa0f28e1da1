//! Runs in which something goes wrong: each row of `docs/faults.md` that is about numbers, memory or a lost process.
#![cfg(target_os = "linux")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use crate::{
    history::losses,
    limit::{ACTIVATION, LARGE, limit_below_peak},
    shell,
    signal::Running,
    support::{document, folder, messages, program, rekindle},
};

const MLP: &str = include_str!("../../configs/parity/mlp.toml");

/// Trains the config of a folder on the processor, with random data of its shapes.
const TRAIN: [&str; 6] = [
    "train",
    "run.toml",
    "--data",
    "synthetic",
    "--device",
    "cpu",
];

/// The most memory that a refusal says the device has, in MiB.
fn largest(said: &str) -> f64 {
    let largest = said.split_once("more than the device has, which is ");
    let largest = largest.and_then(|(_, rest)| rest.split_once(" MiB"));
    let (largest, _) = largest.unwrap_or_else(|| panic!("{said}"));
    largest.parse().expect("a number")
}

#[test]
fn a_loss_that_is_not_finite_has_an_exit_code_and_can_be_skipped() {
    let rates = MLP.replace("learning_rate = 1e-3", "learning_rate = 1e30");
    assert_ne!(rates, MLP);
    let folder = folder(&rates);
    let train = ["train", "run.toml", "--device", "cpu", "--steps", "6"];
    let stopped = rekindle(folder.path(), &[&train[..], &["-o", "run"]].concat());
    let said = messages(&stopped);
    assert_eq!(stopped.status.code(), Some(6), "{said}");
    assert!(
        said.contains("the loss of step") && said.contains("of epoch 1"),
        "{said}"
    );
    assert!(
        said.contains("gradient") && said.contains("in stage"),
        "{said}"
    );
    assert!(said.contains("--on-nonfinite skip"), "{said}");
    assert!(folder.path().join("run/snapshot-1").exists());

    let go_on = |choice: &str| {
        let arguments = [&train[..], &["--json", "--on-nonfinite", choice]].concat();
        let output = rekindle(folder.path(), &arguments);
        (document(&output), messages(&output))
    };
    let (skipped, said) = go_on("skip");
    assert!(skipped["nonfinite_steps"].as_u64() > Some(0), "{said}");
    assert_eq!(skipped["settings"]["on_nonfinite"], "skip");
    assert!(said.contains("nothing is updated"), "{said}");
    let (_, said) = go_on("continue");
    assert!(said.contains("updated anyway"), "{said}");
}

/// A control group inside another that has a limit, as a job in a scheduler's; gone when dropped.
struct Groups {
    outer: PathBuf,
    inner: PathBuf,
}

impl Groups {
    /// `None` where this process may not make any.
    fn limited_to(bytes: u64) -> Option<Self> {
        let versions = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        versions.iter().find_map(|(top, limit)| {
            let name = format!("rekindle-test-{}-{bytes}", std::process::id());
            let outer = Path::new(top).join(name);
            let groups = Self {
                inner: outer.join("inner"),
                outer,
            };
            fs::create_dir_all(&groups.inner).ok()?;
            let limit = groups.outer.join(limit);
            // A folder elsewhere has no such file, nor has a group without this controller.
            (limit.exists() && fs::write(limit, bytes.to_string()).is_ok()).then_some(groups)
        })
    }

    /// Runs the program in the inner group.
    fn run(&self, folder: &Path, arguments: &[&str]) -> Output {
        let enter = "echo $$ > \"$GROUP/cgroup.procs\"";
        let mut command = shell::after(enter, folder, arguments);
        command.env("GROUP", &self.inner);
        command.output().expect("started")
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for group in [&self.inner, &self.outer] {
            // Files in it are the system's.
            let _ = fs::remove_dir(group);
        }
    }
}

#[test]
fn limits_of_control_groups_count_as_the_machines() {
    const LIMIT: u64 = 512 << 20;
    let Some(groups) = Groups::limited_to(LIMIT) else {
        println!("skipped: no control group can be made here");
        return;
    };
    let folder = folder(MLP);
    let devices = document(&groups.run(folder.path(), &["devices", "--json"]));
    let devices = devices["devices"].as_array().expect("devices");
    let cpu = devices.iter().find(|device| device["device"] == "cpu");
    let bytes = |key: &str| cpu.expect("a processor")[key].as_u64().expect("bytes");
    assert_eq!(bytes("total_bytes"), LIMIT);
    assert!((1..=LIMIT).contains(&bytes("free_bytes")));

    let train = |budget| {
        let train = ["train", "run.toml", "--device", "cpu", "--budget", budget];
        let output = groups.run(folder.path(), &train);
        (output.status.code(), messages(&output))
    };
    for budget in ["512MiB", "600MiB"] {
        let (code, said) = train(budget);
        assert_eq!(code, Some(3), "{said}");
        // All but what runs beside the heap.
        let largest = largest(&said);
        assert!((448.0..512.0).contains(&largest), "{said}");
    }
    let (code, said) = train("200MiB");
    assert_eq!(code, Some(0), "{said}");
}

/// The largest budget that is let through leaves room for all that the system counts beside it.
#[test]
#[ignore = "takes half a minute: `.ci/full` runs it"]
fn the_largest_budget_in_a_control_group_is_not_killed() {
    for mebibytes in [80, 128, 256] {
        let Some(groups) = Groups::limited_to(mebibytes << 20) else {
            println!("skipped: no control group can be made here");
            return;
        };
        let folder = folder(include_str!("../../configs/gpt.toml"));
        let train = |budget: String| {
            let own = ["--steps", "3", "--no-eval", "--budget", &budget];
            let output = groups.run(folder.path(), &[&TRAIN[..], &own].concat());
            (output.status.code(), messages(&output))
        };
        let (mut code, mut said) = train(format!("{mebibytes}MiB"));
        assert_eq!(code, Some(3), "{said}");
        let mut below = 0.0;
        // The system counts what a group uses in batches of hundreds of kB for each processor: another start may have less.
        for _ in 0..5 {
            if code == Some(3) {
                // It is shown to a tenth.
                below = largest(&said) - 0.1;
                (code, said) = train(format!("{below:.1}MiB"));
            }
        }
        assert_eq!(code, Some(0), "{below:.1} of {mebibytes} MiB: {said}");
        println!("{below:.1} of {mebibytes} MiB");
    }
}

#[test]
fn an_allocation_that_the_system_refuses_is_survived_bit_for_bit() {
    let folder = folder(LARGE);
    let train = ["train", "run.toml", "--device", "cpu", "--json", "-o"];
    let train = |run: &'static str| [&train[..], &[run]].concat();
    let whole = document(&rekindle(folder.path(), &train("whole")));
    assert_eq!(whole["replans"], 0);

    let mut short = Running::start(&mut program(folder.path(), &train("short")));
    short.read_to(|line| line.contains("step 1/"));
    // Two activations less than steps have taken so far.
    limit_below_peak(&short.id(), 2 * ACTIVATION);
    let output = short.end();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("could not allocate"), "{said}");
    assert!(said.contains("; re-planned from step "), "{said}");
    let record = document(&output);
    assert!(record["replans"].as_u64() > Some(0), "{said}");
    let losses = |run: &str| losses(&folder.path().join(run));
    assert_eq!(losses("short"), losses("whole"));
}

#[test]
fn no_larger_budget_is_named_than_the_plain_run_takes() {
    let folder = folder(include_str!("../../configs/linear-1000.toml"));
    let train = [
        "train", "run.toml", "--device", "cpu", "--steps", "2", "--batch", "32", "--json",
    ];
    let bytes = |arguments: &[&str], key: &str| {
        let output = rekindle(folder.path(), &[&train, arguments].concat());
        let document = document(&output);
        document[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{document}"))
    };
    let named = bytes(&["--budget", "1kB"], "smallest_budget_bytes");
    let plain = bytes(&["--planner", "none"], "measured_peak_bytes");
    // A plan is made within 99% of its budget.
    assert!(
        named <= plain + plain / 50,
        "{named} bytes named, {plain} plain"
    );
    bytes(&["--budget", &format!("{named}B")], "measured_peak_bytes");
}

#[test]
fn the_budget_that_is_named_does_for_a_run_with_a_folder_too() {
    // Writing the state of the one large parameter takes more than a step.
    let large = r#"
[data]
synthetic = { shape = [8], target = { classes = 4 }, samples = 16 }
[model]
layers = [{ linear = { out = 60000 } }, "relu", { linear = { out = 4 } }]
[train]
steps = 2
batch = 2
optimizer = "adam"
"#;
    // So does the bookkeeping for each of 122 small ones.
    let many = large.replace(
        "{ linear = { out = 60000 } }, \"relu\"",
        "{ repeat = { times = 60, layers = [{ linear = { out = 8 } }, \"relu\"] } }",
    );
    for (config, update) in [
        (MLP, "after"),
        (MLP, "in-backward"),
        (large, "in-backward"),
        (&many, "in-backward"),
    ] {
        let folder = folder(config);
        let train = ["train", "run.toml", "--device", "cpu", "--json"];
        let train = [&train[..], &["--update", update]].concat();
        let refused = rekindle(folder.path(), &[&train[..], &["--budget", "1kB"]].concat());
        let smallest = document(&refused)["smallest_budget_bytes"]
            .as_u64()
            .expect("bytes");
        let budget = format!("{smallest}B");
        let arguments = [&train[..], &["-o", update, "--budget", &budget]].concat();
        let output = rekindle(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
        let peak = document(&output)["measured_peak_bytes"].as_u64();
        assert!(peak <= Some(smallest), "{update}: {peak:?} of {smallest}");
        if config == large {
            let estimate = ["estimate", "run.toml", "--device", "cpu", "--json"];
            let estimate = document(&rekindle(folder.path(), &estimate));
            let parts = estimate["plain"]["peak"].as_object().expect("parts");
            let sum: u64 = parts.values().filter_map(serde_json::Value::as_u64).sum();
            assert_eq!(estimate["plain"]["predicted_peak_bytes"], sum, "{parts:?}");
            let measured = peak.expect("bytes");
            assert!(
                sum.abs_diff(measured) <= measured / 20,
                "{sum}, {measured} measured"
            );
        }
    }
}

/// Refused by its shapes, a training is told a batch and a budget that it can have.
#[test]
fn the_batch_and_the_budget_that_shapes_name_work() {
    let config = r#"
[data]
synthetic = { shape = [256], target = { classes = 4 }, samples = 1000000 }
[model]
layers = [
  { repeat = { times = 10, layers = [{ residual = [{ linear = { out = 256 } }, "gelu"] }] } },
  { linear = { out = 4 } },
]
[train]
steps = 2
batch = 8000
eval_split = 0
"#;
    let folder = folder(config);
    let train = |more: &[&str]| {
        let train = ["train", "run.toml", "--device", "cpu", "--json"];
        rekindle(folder.path(), &[&train[..], more].concat())
    };
    let refused = |output: Output| {
        let said = messages(&output);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(!said.contains("measur"), "{said}");
        (document(&output), said)
    };
    let works = |more: &[&str], budget: u64| {
        let output = train(more);
        assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
        let peak = document(&output)["measured_peak_bytes"].as_u64();
        assert!(peak <= Some(budget), "{peak:?} of {budget}");
    };
    // No part of the command beside the batch is another one.
    let (huge, said) = refused(train(&["--batch", "1000000", "--budget", "32MiB"]));
    let batch = huge["batch"].as_u64().expect("a batch").to_string();
    assert!(said.contains(&format!("try `--batch {batch}`")), "{said}");
    works(&["--batch", &batch, "--budget", "32MiB"], 32 << 20);
    // Not even one sample fits beside the weights.
    let (small, said) = refused(train(&["--budget", "1MiB"]));
    assert!(small["batch"].is_null(), "{small}");
    assert!(said.contains("try `--budget "), "{said}");
    let smallest = small["smallest_budget_bytes"].as_u64().expect("bytes");
    works(&["--budget", &format!("{smallest}B")], smallest);
    // Without a budget the free memory is the limit, also of an estimate.
    let limited = |arguments: &[&str]| {
        let limited = shell::after("ulimit -v 900000", folder.path(), arguments).output();
        limited.expect("started")
    };
    let plain = ["train", "run.toml", "--device", "cpu", "--json"];
    let (huge, said) = refused(limited(&[&plain[..], &["--batch", "40000"]].concat()));
    let batch = huge["batch"].as_u64().expect("a batch").to_string();
    assert!(
        said.contains("the plain run does not fit ")
            && said.contains(&format!(
                "try `--batch {batch}`, or `--planner auto --budget "
            )),
        "{said}"
    );
    for command in ["train", "estimate"] {
        let output = limited(&[command, "run.toml", "--device", "cpu", "--budget", "1GiB"]);
        let said = messages(&output);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(
            said.contains("more than the device has, which is 878.9 MiB"),
            "{said}"
        );
    }
}

/// The smallest budget that is named for a run with a folder holds it, and holds it when it is resumed.
#[test]
fn a_run_within_its_smallest_budget_is_resumed_in_it() {
    for config in [
        include_str!("../../configs/parity/gpt.toml"),
        include_str!("../../configs/parity/tokens.toml"),
    ] {
        let folder = folder(config);
        let train = |budget: &str| {
            let own = ["--steps", "2", "--budget", budget, "-o", "run", "--json"];
            rekindle(folder.path(), &[&TRAIN[..], &own].concat())
        };
        let refused = document(&train("1KiB"));
        let smallest = refused["smallest_budget_bytes"].as_u64().expect("bytes");
        let begun = train(&format!("{smallest}B"));
        assert_eq!(begun.status.code(), Some(0), "{}", messages(&begun));
        let resume = ["train", "--resume", "run", "--steps", "4", "--json"];
        let resumed = rekindle(folder.path(), &resume);
        let said = messages(&resumed);
        assert_eq!(resumed.status.code(), Some(0), "{said}");
        let record = document(&resumed);
        let number = |key: &str| record[key].as_u64();
        assert_eq!(
            (number("steps"), number("replans")),
            (Some(4), Some(0)),
            "{said}"
        );
        assert_eq!(number("budget_bytes"), Some(smallest));
    }
}
