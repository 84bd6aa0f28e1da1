//! CUDA without a GPU: memory, by the count of a stand-in for NVIDIA's driver.

#![cfg(all(feature = "cuda", unix))]

use std::{
    fs::{self, File},
    io::{BufReader, Read},
    os::unix::fs::FileExt,
    path::Path,
    process::Command,
};

use serde_json::Value;

use crate::history::losses;
use crate::standin::{Standin, done, messages, one_line, spawned, until};

/// What the stand-in's GPU has, and what a context takes of it.
const TOTAL: u64 = 256 << 20;
const CONTEXT: u64 = 64 << 20;

/// The processor computes; without fused multiply-adds a kernel of several operations rounds as several kernels do.
const COMPUTES: [(&str, &str); 3] = [
    ("STUB_NVRTC", "cpu"),
    ("STUB_CUDA_CC", "61"),
    (
        "STUB_CXX",
        "g++ -std=c++20 -O1 -w -march=native -fno-strict-aliasing -ffp-contract=off",
    ),
];

/// The stand-in's table of what processes hold: their number, the size of a place, and the place of this process.
const PLACES: u64 = 256;
const PLACE: u64 = 72;
const OWN_PLACE: u64 = 200;

/// Holds so many bytes of the GPU, as another process would.
fn take(standin: &Standin, bytes: u64) {
    let state = File::options().write(true).open(standin.path("state"));
    let state = state.expect("a table");
    let write = |bytes: &[u8], at: u64| state.write_all_at(bytes, at).expect("written");
    write(&bytes.to_le_bytes(), OWN_PLACE * PLACE + 8);
    write(&std::process::id().to_le_bytes(), OWN_PLACE * PLACE);
}

/// Holds all of the GPU's memory but this, as another process would.
fn take_all_but(standin: &Standin, leave: u64) {
    let state = File::open(standin.path("state")).expect("a table");
    let number = |at: u64| {
        let mut bytes = [0; 8];
        state.read_exact_at(&mut bytes, at).expect("a place");
        u64::from_le_bytes(bytes)
    };
    let places = (0..PLACES).filter(|place| *place != OWN_PLACE);
    let used: u64 = places.map(|place| number(place * PLACE + 8)).sum();
    take(standin, TOTAL - leave - used);
}

/// Parameters of 56 MiB in 14 layers, with Adam: more than what is copied in two batches would pin.
const LARGE: &str = r#"
[data]
synthetic = { shape = [1024], target = { classes = 4 }, samples = 64 }

[model]
layers = [
  { repeat = { times = 14, layers = [{ linear = { out = 1024 } }, "gelu"] } },
  { linear = { out = 4 } },
]

[train]
steps = 1
batch = 32
eval_split = 0.0
optimizer = "adam"
learning_rate = 0.001
"#;

#[test]
#[ignore = "`.ci/full` runs it"]
fn little_host_memory_is_pinned_while_a_model_is_made_kept_and_read_again() {
    let Some(standin) = Standin::new() else {
        return;
    };
    fs::write(standin.path("run.toml"), LARGE).expect("written");
    let summary = standin.path("summary");
    let settings = [("STUB_CUDA_SUMMARY", summary.to_str().expect("text"))];
    // What `docs/cuda.md` states: tensors of 32 MiB between two clean-ups in pages that are a quarter larger here, one more
    // tensor, and what holds the arguments of kernels.
    let most = (32 + 4) * 5 / 4 + 8;
    // The first makes the model and keeps it, with its optimizer's state; the second reads both.
    for arguments in [&["-o", "run"][..], &["--resume", "run", "--steps", "2"]] {
        let _ = fs::remove_file(&summary);
        done(standin.train(arguments, &settings));
        let said = fs::read_to_string(&summary).expect("a summary");
        let peaks = peaks(&said, "pinned host bytes: peak ");
        let peak = peaks.max().expect("a peak");
        println!("{arguments:?}: {peak} bytes pinned");
        assert!(peak > 8 << 20, "nothing was copied: {said}");
        assert!(peak <= most << 20, "{said}");
    }
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn memory_that_another_process_takes_is_survived_or_told() {
    let Some(standin) = Standin::new() else {
        return;
    };
    let total = TOTAL.to_string();
    let context = CONTEXT.to_string();
    let settings = [
        ("STUB_CUDA_TOTAL", &*total),
        ("STUB_CUDA_CONTEXT", &*context),
    ];
    let arguments = ["--budget", "120MiB", "--count", "reserved"];
    let run = |leave: u64| {
        let _ = fs::remove_file(standin.path("state"));
        let mut child = spawned(&mut standin.train(&arguments, &settings));
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        until(&mut said, "plan `");
        take_all_but(&standin, leave);
        let mut rest = String::new();
        said.read_to_string(&mut rest).expect("text");
        let code = child.wait().expect("ended").code();
        (code, one_line(&rest))
    };
    let (code, said) = run(20 << 20);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the device could not allocate"), "{said}");
    assert!(said.contains("; re-planned from step "), "{said}");
    let (code, said) = run(1 << 20);
    assert_eq!(code, Some(4), "{said}");
    let words = [
        "out of memory in step 1",
        "no smaller plan fits",
        "reserved with the driver's context",
        "free",
        "hold the most",
    ];
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn a_batch_whose_allocation_fails_is_repeated_bit_for_bit() {
    let Some(standin) = Standin::new() else {
        return;
    };
    // After each snapshot the pools give back what is free, so that every step allocates anew. The processor computes this
    // batch in a quarter of the time.
    let config = fs::read_to_string(standin.path("run.toml")).expect("a config");
    let config = config.replace("batch = 8192", "batch = 2048") + "[run]\nsnapshot_every = 1\n";
    fs::write(standin.path("run.toml"), config).expect("written");
    let (total, context) = (TOTAL.to_string(), CONTEXT.to_string());
    let settings = [
        COMPUTES[0],
        COMPUTES[1],
        COMPUTES[2],
        ("STUB_CUDA_TOTAL", &*total),
        ("STUB_CUDA_CONTEXT", &*context),
    ];
    let arguments = ["--steps", "4", "--budget", "78MiB", "-o"];
    let train = |run: &'static str| standin.train(&[&arguments[..], &[run]].concat(), &settings);
    done(train("whole"));

    let mut child = spawned(&mut train("short"));
    let mut said = BufReader::new(child.stderr.take().expect("piped"));
    until(&mut said, "step 1/");
    take(&standin, TOTAL - CONTEXT - (5 << 20));
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    assert_eq!(child.wait().expect("ended").code(), Some(0), "{rest}");
    for words in ["the device could not allocate", "; re-planned from step "] {
        assert!(rest.contains(words), "{words}: {rest}");
    }
    let whole = losses(&standin.path("whole"));
    let mut distinct = whole.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), 4, "{whole:?}");
    assert_eq!(losses(&standin.path("short")), whole);
    let weights = |run: &str| fs::read(standin.path(run).join("weights.safetensors"));
    assert!(weights("short").expect("weights") == weights("whole").expect("weights"));
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn what_the_driver_gives_is_as_much_after_300_steps_as_after_100() {
    let Some(standin) = Standin::new() else {
        return;
    };
    let summary = standin.path("summary");
    let settings = [("STUB_CUDA_SUMMARY", summary.to_str().expect("text"))];
    let peak = |steps: &str| {
        let _ = fs::remove_file(&summary);
        let batch = ["--batch", "256", "--segments", "1", "--steps", steps];
        done(standin.train(&batch, &settings));
        device_peak(&summary)
    };
    // Kernels are tuned in the first run, which takes memory too.
    peak("1");
    let warm = peak("100");
    println!("{warm} bytes");
    assert_eq!(peak("300"), warm);
}

/// Launches of kernels fail from one on, as a poisoned device's do.
#[test]
#[ignore = "`.ci/full` runs it"]
fn a_run_whose_device_is_lost_continues_from_its_snapshot() {
    let Some(standin) = Standin::new() else {
        return;
    };
    // Enough for the last quarter of all launches to be of steps, although a start within a budget has more launches than
    // one without.
    const STEPS: usize = 60;
    let config = fs::read_to_string(standin.path("run.toml")).expect("a config");
    let config = config + "[run]\nsnapshot_every = 1\n";
    fs::write(standin.path("run.toml"), config).expect("written");
    let summary = standin.path("summary");
    let path = summary.to_str().expect("text");
    let steps = STEPS.to_string();
    let arguments = ["--batch", "256", "--steps", &steps];
    let train = |more: &[&str], settings: &[(&str, &str)]| {
        standin.train(&[&arguments[..], more].concat(), settings)
    };
    // Kernels are tuned in the first run.
    done(train(&["-o", "tuned"], &[]));
    done(train(&["-o", "whole"], &[("STUB_CUDA_SUMMARY", path)]));
    let said = fs::read_to_string(&summary).expect("a summary");
    let (_, launches) = said.split_once("launches ").expect("a count");
    let launches = launches
        .split(' ')
        .next()
        .and_then(|count| count.parse().ok());
    let launches: u64 = launches.expect("a count");

    // Before the first step, it is measured in two or three passes, as long as that takes.
    let fail = format!("cuLaunchKernel=719@{}", launches - launches / 4);
    let lost = train(&["-o", "run"], &[("STUB_CUDA_FAIL", &*fail)])
        .output()
        .expect("started");
    assert_eq!(lost.status.code(), Some(1), "{}", messages(&lost));
    done(train(&["--resume", "run"], &[]));
    assert_eq!(losses(&standin.path("run")).len(), STEPS);
}

/// Two ranks on two GPUs: each within its budget by the driver's count, with the losses of one, and on no GPU but its own.
#[cfg(feature = "mpi")]
#[test]
#[ignore = "`.ci/full` runs it"]
fn ranks_train_on_a_gpu_each() {
    let Some(standin) = Standin::new() else {
        return;
    };
    let (summary, context) = (standin.path("summary"), CONTEXT.to_string());
    let settings = [
        COMPUTES[0],
        COMPUTES[1],
        COMPUTES[2],
        ("STUB_CUDA_CONTEXT", &*context),
        ("STUB_CUDA_DEVICES", "2"),
        ("STUB_NVML_DEVICES", "2"),
        ("STUB_CUDA_SUMMARY", summary.to_str().expect("text")),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ];
    let train = ["--steps", "4", "--count", "reserved", "-o"];
    done(standin.train(&[&train[..], &["one"]].concat(), &settings));
    // How often each process has asked for a context.
    let contexts = || -> Vec<u64> {
        let counted = fs::read_to_string(&summary).expect("a summary");
        let calls = counted.split("cuDevicePrimaryCtxRetain ").skip(1);
        let times = calls.filter_map(|rest| rest.split_whitespace().next()?.parse().ok());
        times.collect()
    };
    let [contexts_of_one] = contexts()[..] else {
        panic!("one process");
    };
    let program = assert_cmd::cargo::cargo_bin("rekindle");
    let ranks = |run: &'static str, more: &[&str]| {
        let _ = fs::remove_file(&summary);
        let started = [
            "--oversubscribe",
            "-n",
            "2",
            program.to_str().expect("text"),
        ];
        let arguments = ["train", "run.toml", "--device", "cuda"];
        let all = [&started[..], &arguments, &train, &[run], more].concat();
        let said = done(standin.command("mpirun".as_ref(), &all, &settings));
        let counted = fs::read_to_string(&summary).expect("a summary");
        let taken: Vec<u64> = peaks(&counted, "device bytes: peak ").collect();
        assert_eq!(taken.len(), 2, "{counted}, {said}");
        assert_eq!(contexts(), [contexts_of_one; 2], "{counted}");
        CONTEXT + taken.into_iter().max().expect("two")
    };
    let plain = ranks("two", &["--segments", "1"]);
    let budget = CONTEXT + (plain - CONTEXT) / 4 * 3;
    let within = ["--budget", &format!("{budget}B"), "--optimizer-state"];
    for state in ["whole", "sharded"] {
        let taken = ranks(state, &[&within[..], &[state]].concat());
        println!("{state}: {taken} of {budget} bytes, plain {plain}");
        assert!(taken <= budget, "{state}: {taken} of {budget}");
    }
    let losses = |run: &str| -> Vec<f64> {
        let losses = losses(&standin.path(run)).into_iter();
        losses.map(|loss| loss.parse().expect("a number")).collect()
    };
    let one = losses("one");
    for run in ["two", "whole", "sharded"] {
        let pairs = one.iter().zip(losses(run));
        let off = pairs.map(|(one, other)| (one - other).abs() / one);
        let most = off.fold(0.0, f64::max);
        println!("{run}: losses differ by {most:e}");
        // Sums of half a million numbers, in another order.
        assert!(most < 1e-5, "{run}: {most}");
    }
}

/// What the driver gave at most to a process of the stand-in's summary, its context aside.
#[track_caller]
fn device_peak(summary: &Path) -> u64 {
    let said = fs::read_to_string(summary).expect("a summary");
    peaks(&said, "device bytes: peak ").max().expect("a peak")
}

/// The smallest budget that is named for `run.toml`.
#[track_caller]
fn smallest_budget(standin: &Standin, offload: &str, settings: &[(&str, &str)]) -> u64 {
    let plan = ["plan", "run.toml", "--device", "cuda", "--json"];
    let budget = ["--budget", "1MiB", "--count", "reserved"];
    let arguments = [&plan[..], &budget, &["--offload", offload]].concat();
    let refused = document(standin.rekindle(&arguments, settings));
    let smallest = &refused["smallest_budget_bytes"];
    smallest.as_u64().unwrap_or_else(|| panic!("{refused}"))
}

/// Peaks of all processes in the stand-in's summary.
fn peaks(summary: &str, what: &str) -> impl Iterator<Item = u64> {
    summary.lines().filter_map(move |line| {
        let peak = line.strip_prefix(what)?;
        peak.split(',').next()?.parse().ok()
    })
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn budgets_shares_and_sizes_are_of_what_is_free() {
    let Some(standin) = Standin::new() else {
        return;
    };
    const FREE: u64 = 160 << 20;
    let (total, context) = (TOTAL.to_string(), CONTEXT.to_string());
    let settings = [
        ("STUB_CUDA_TOTAL", &*total),
        ("STUB_CUDA_CONTEXT", &*context),
    ];
    // The first makes the table.
    done(standin.rekindle(&["devices"], &settings));
    take(&standin, TOTAL - FREE);

    let refused = standin
        .train(&["--budget", "200MiB", "--count", "reserved"], &settings)
        .output()
        .expect("started");
    let said = messages(&refused);
    assert_eq!(refused.status.code(), Some(3), "{said}");
    let own = fs::read_to_string("/proc/self/comm").expect("a name");
    for words in ["160.0 MiB", own.trim(), &std::process::id().to_string()] {
        assert!(said.contains(words), "{words}: {said}");
    }

    let share = ["--device", "cuda", "--budget", "80%-of-device", "--json"];
    let plan = standin.rekindle(&[&["plan", "run.toml"], &share[..]].concat(), &settings);
    assert_eq!(document(plan)["budget_bytes"], FREE / 10 * 8);

    let vary = ["max", "run.toml", "--vary", "batch"];
    let count = ["--count", "reserved"];
    let largest = document(standin.rekindle(&[&vary, &share[..], &count].concat(), &settings));
    assert_eq!(largest["budget_bytes"], FREE / 10 * 8);
    let run = largest["run"].as_str().expect("a command");
    assert!(run.contains("--count reserved"), "{run}");
    let words: Vec<&str> = run.split(' ').skip(1).collect();
    done(standin.rekindle(&words, &settings));
}

/// Layers on images of 8 channels, 32 x 32, before a pooling of each channel.
fn on_images(layers: &str, batch: usize) -> String {
    format!(
        r#"
[data]
synthetic = {{ shape = [8, 32, 32], target = {{ values = 8 }}, samples = 32 }}

[model]
layers = [{layers}, {{ max_pool2d = {{ kernel = 32 }} }}, "flatten"]

[train]
steps = 2
batch = {batch}
eval_split = 0.0
learning_rate = 0.001
"#
    )
}

/// A convolution of 8 channels by windows of 5 x 5: as a matrix, what it reads is 25 times as large as it is.
const CONVOLUTION: &str = r#"{ conv2d = { out = 8, kernel = 5, padding = "same" } }"#;

#[test]
fn a_budget_is_held_while_kernels_are_chosen_or_refused_before() {
    let Some(standin) = Standin::new() else {
        return;
    };
    // As a matrix, what it reads takes 13 MiB.
    fs::write(standin.path("run.toml"), on_images(CONVOLUTION, 16)).expect("written");
    let summary = standin.path("summary");
    let context = CONTEXT.to_string();
    let settings = [
        ("STUB_CUDA_CONTEXT", &*context),
        ("STUB_CUDA_SUMMARY", summary.to_str().expect("text")),
    ];
    let small = CONTEXT + (12 << 20);
    // Exit code, messages, and what the driver gave at most.
    let train = |budget: u64| {
        let _ = fs::remove_file(&summary);
        let budget = format!("{budget}B");
        let run = ["--budget", &budget, "--count", "reserved"];
        let output = standin.train(&run, &settings).output().expect("started");
        let peak = CONTEXT + device_peak(&summary);
        (output.status.code(), messages(&output), peak)
    };
    let (code, said, peak) = train(small);
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("are not chosen yet on this GPU"), "{said}");
    assert!(peak <= small, "{peak} bytes of {small}");

    // What is advised has room, and it is needed.
    let advised = said.split("`--budget ").nth(1);
    let advised = advised.and_then(|rest| rest.split("MiB").next()?.parse::<f64>().ok());
    let large = (advised.unwrap_or(0.0) * f64::from(1 << 20)) as u64;
    let (code, said, peak) = train(large);
    assert_eq!(code, Some(0), "{said}");
    println!("{peak} bytes of {large} while kernels are chosen");
    assert!(peak > small, "nothing was chosen: {peak} bytes");
    assert!(peak <= large, "{peak} bytes of {large}");

    let (code, said, peak) = train(small);
    println!("{peak} bytes of {small} with kernels that are chosen");
    assert_eq!(code, Some(0), "{said}");
    assert!(peak <= small, "{peak} bytes of {small}");
}

/// Random draws, 256 KiB each, which cannot be made again.
const DRAWS: &str = r#"
[data]
synthetic = { shape = [64], target = { values = 64 }, samples = 4096 }

[model]
layers = ["layer_norm", { repeat = { times = 12, layers = [{ dropout = { p = 0.125 } }] } }]

[train]
steps = 3
batch = 1024
eval_split = 0.0
optimizer = "adam"
learning_rate = 0.001
"#;

#[test]
#[ignore = "`.ci/full` runs it"]
fn a_budget_that_only_offload_meets_is_held_by_the_drivers_count() {
    let Some(standin) = Standin::new() else {
        return;
    };
    const SMALL_CONTEXT: u64 = 1 << 20;
    const DRAW: u64 = 1024 * 64 * 4;
    fs::write(standin.path("run.toml"), DRAWS).expect("written");
    let (context, summary) = (SMALL_CONTEXT.to_string(), standin.path("summary"));
    let settings = [
        COMPUTES[0],
        COMPUTES[1],
        COMPUTES[2],
        ("STUB_CUDA_CONTEXT", &*context),
        ("STUB_CUDA_SUMMARY", summary.to_str().expect("text")),
    ];
    let smallest = |offload| smallest_budget(&standin, offload, &settings);
    let (without, with) = (smallest("never"), smallest("auto"));
    println!("{without} bytes without, {with} with");
    assert!(with + 4 * DRAW < without, "{with} of {without}");
    let budget = (with + without) / 2;

    let train = |arguments: &[&str]| {
        let _ = fs::remove_file(&summary);
        let run = document(standin.train(&[arguments, &["--json"]].concat(), &settings));
        (run, device_peak(&summary) + SMALL_CONTEXT)
    };
    let within = format!("{budget}B");
    let bounded = ["--budget", &within, "--count", "reserved", "-o", "within"];
    let (run, peak) = train(&bounded);
    let (_, plain_peak) = train(&["--planner", "none", "-o", "plain"]);
    println!("{peak} bytes within {budget}, plain {plain_peak}");
    assert!(peak <= budget && budget < plain_peak);
    assert_eq!(
        losses(&standin.path("within")),
        losses(&standin.path("plain"))
    );
    let offload = &run["offload"];
    assert!(offload["tensors"].as_u64() > Some(0), "{offload}");

    // Transfers are told by themselves.
    let passes = |pass: &str| {
        let actions = run["timeline"]["actions"].as_array().expect("actions");
        actions.iter().filter(|one| one["pass"] == pass).count()
    };
    assert!(passes("offload") > 0 && passes("fetch") > 0, "{run}");
    let folder = standin.path("within");
    let trace = ["report", folder.to_str().expect("text"), "-o", "trace.json"];
    done(standin.rekindle(&trace, &[]));
    let trace = fs::read_to_string(standin.path("trace.json")).expect("a trace");
    let trace: Value = serde_json::from_str(&trace).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    for pass in ["offload", "fetch"] {
        let of_pass = events.iter().filter(|event| event["cat"] == pass);
        assert_eq!(of_pass.count(), passes(pass), "{pass}");
    }
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn kernels_for_which_a_budget_has_no_room_end_no_run_that_can_do_without_them() {
    let Some(standin) = Standin::new() else {
        return;
    };
    // Eight, each of which takes longer to run again than what it makes takes to move.
    let dropout = r#"{ dropout = { p = 0.1 } }"#;
    let eight = format!("{{ repeat = {{ times = 8, layers = [{CONVOLUTION}, {dropout}] }} }}");
    fs::write(standin.path("run.toml"), on_images(&eight, 8)).expect("written");
    let (context, summary) = (CONTEXT.to_string(), standin.path("summary"));
    let settings = [
        COMPUTES[0],
        COMPUTES[1],
        COMPUTES[2],
        ("STUB_CUDA_CONTEXT", &*context),
        ("STUB_CUDA_SUMMARY", summary.to_str().expect("text")),
    ];
    // Without a budget, kernels for tensors that stay on the device are chosen.
    done(standin.train(&["--planner", "none", "-o", "plain"], &settings));
    let smallest = smallest_budget(&standin, "never", &settings);

    // Those that come back from the host need others, and so does a step that is traced. Which of the two, and now and then
    // whether any is moved, depends on the plan, and that on measured times.
    let (mut moved, mut without) = (0, 0);
    for more in [256 << 10, 128 << 10, 32 << 10] {
        let (budget, folder) = (smallest + more, format!("within-{more}"));
        fs::remove_file(&summary).expect("a summary");
        let within = format!("{budget}B");
        let run = ["--budget", &within, "--count", "reserved", "-o", &folder];
        let said = done(standin.train(&run, &settings));
        moved += usize::from(said.contains("moved to host memory"));
        let replaced = "choosing kernels for tensors that come back from host memory may take";
        for words in [replaced, "is not traced: choosing kernels for that"] {
            without += usize::from(said.contains(words));
        }
        let peak = CONTEXT + device_peak(&summary);
        println!("{peak} bytes within {budget}, {without} without kernels");
        assert!(peak <= budget, "{peak} bytes of {budget}");
        assert_eq!(
            losses(&standin.path(&folder)),
            losses(&standin.path("plain"))
        );
        if moved > 0 && without > 0 {
            return;
        }
    }
    assert!(moved > 0, "all tensors stayed on the device");
    assert!(without > 0, "all kernels could be chosen");
}

/// Runs a command to its end, and reads the document that it writes.
#[track_caller]
fn document(mut command: Command) -> Value {
    let output = command.output().expect("started");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", messages(&output)))
}
