//! `rekindle train` under `mpirun`. All but one of these tests need the feature `mpi`, and `mpirun`.
#![cfg(unix)]

#[path = "support/history.rs"]
mod history;
#[path = "support/limit.rs"]
mod limit;
mod support;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;
use tempfile::TempDir;

use self::{
    limit::{ACTIVATION, LARGE, limit_below_peak},
    support::{document, folder, messages, rekindle},
};

/// Layers of GELU on a batch of which two ranks have 501 and 500 samples, and three have 334, 334 and 333.
const MLP: &str = r#"
[data]
synthetic = { shape = [32], target = { classes = 5 }, samples = 1300 }

[model]
layers = [{ repeat = { times = 12, layers = [{ linear = { out = 64 } }, "gelu"] } }, { linear = { out = 5 } }]

[train]
steps = 20
batch = 1001
eval_split = 0.2
eval_every = 10
learning_rate = 1e-3

[run]
snapshot_every = 5
"#;

/// A small transformer on tokens, its batch of 35 shared by 2 and 3 ranks, its gradients clipped by their common norm.
const GPT: &str = r#"
[data]
synthetic = { shape = [32], vocab = 32, target = { token_classes = 32 }, samples = 64 }

[model]
layers = [
  { embedding = { dim = 32 } },
  "positions",
  { repeat = { times = 4, layers = [
    { residual = ["layer_norm", { attention = { heads = 4 } }] },
    { residual = [{ linear = { out = 128 } }, "gelu", { linear = { out = 32 } }] },
  ] } },
  "unembedding",
]

[train]
steps = 20
batch = 35
optimizer = "adamw"
learning_rate = 1e-3
clip_norm = 0.5
"#;

/// Convolutions that are normalised by the samples of all ranks.
const CNN: &str = r#"
[data]
synthetic = { shape = [3, 12, 12], target = { classes = 4 }, samples = 64 }

[model]
layers = [
  { repeat = { times = 4, layers = [{ conv2d = { out = 8, kernel = 3, padding = "same" } }, "batch_norm", "relu"] } },
  "flatten",
  { linear = { out = 4 } },
]

[train]
steps = 20
batch = 35
eval_split = 0.2
optimizer = "sgd"
momentum = 0.9
learning_rate = 1e-2
sync_batch_norm = true
"#;

/// Data that is not there.
const NO_DATA: &str = r#"
[data]
mnist = { folder = "nowhere" }

[model]
layers = ["flatten", { linear = { out = 10 } }]

[train]
steps = 1
batch = 8
"#;

/// How far losses of several ranks may be from those of one, relative: sums of 32-bit values in another order, over 20
/// updates.
const TOLERANCE: f64 = 1e-4;

/// How long a job may take. One that hangs takes longer.
const HANGS: Duration = Duration::from_secs(120);

/// How long ranks wait for each other.
const PATIENCE: &str = "4s";

/// Jobs of several processes take turns.
static TURN: Mutex<()> = Mutex::new(());

/// A job's turn, where there is MPI.
fn turn() -> Option<MutexGuard<'static, ()>> {
    let found = Command::new("mpirun").arg("--version").output();
    if !cfg!(feature = "mpi") || found.is_err() {
        eprintln!("skipped: needs the feature `mpi`, and `mpirun`");
        return None;
    }
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// `mpirun`, which needs to be told of ranks and programs.
fn mpirun(folder: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args([&HANGS.as_secs().to_string(), "mpirun"]);
    // More ranks than cores, and root, as in containers.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    command.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("REKINDLE_CACHE", "").env("NO_COLOR", "1");
    command.env_remove("RUST_BACKTRACE");
    command.arg("--oversubscribe").current_dir(folder);
    command
}

/// `rekindle` by so many ranks.
fn ranks(count: usize, folder: &Path, arguments: &[&str]) -> Command {
    let mut command = mpirun(folder);
    command.args(["-n", &count.to_string()]);
    command.arg(cargo_bin("rekindle")).args(arguments);
    command
}

/// Trains what is in `run.toml`.
fn trained(count: usize, folder: &TempDir, run: &str, more: &[&str]) -> Value {
    let arguments = [&["train", "run.toml", "--device", "cpu", "-o", run], more].concat();
    let arguments = [&arguments[..], &["--json"]].concat();
    let output = match count {
        1 => rekindle(folder.path(), &arguments),
        _ => ranks(count, folder.path(), &arguments)
            .output()
            .expect("started"),
    };
    assert!(output.status.success(), "{}", messages(&output));
    document(&output)
}

fn losses(folder: &TempDir, run: &str) -> Vec<f64> {
    let losses = history::losses(&folder.path().join(run)).into_iter();
    losses.map(|loss| loss.parse().expect("a number")).collect()
}

#[track_caller]
fn close(one: f64, other: f64) {
    assert!(
        (one - other).abs() <= TOLERANCE * one.abs(),
        "{one}, {other}"
    );
}

#[track_caller]
fn all_close(one: &[f64], other: &[f64]) {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        close(*one, *other);
    }
}

/// Every rank's peak, and its budget.
fn within_budgets(record: &Value, count: usize) {
    let ranks = record["ranks"].as_array().expect("a list");
    assert_eq!(ranks.len(), count);
    for rank in ranks {
        let bytes = |key: &str| rank[key].as_u64().expect("bytes");
        assert!(bytes("measured_peak_bytes") > 0);
        assert!(
            bytes("measured_peak_bytes") <= bytes("budget_bytes"),
            "{rank}"
        );
    }
    let batch = ranks
        .iter()
        .map(|rank| rank["batch"].as_u64().expect("samples"));
    assert_eq!(Some(batch.sum()), record["batch"].as_u64());
}

/// What an exchange adds to the step.
fn added(taken: &Value) -> f64 {
    let parts = ["waited_s", "staged_s", "means_s", "parameters_s"];
    let parts = parts.map(|part| taken[part].as_f64().expect("seconds"));
    parts.into_iter().sum()
}

/// What the exchange adds is predicted and measured, and what the network did is in the timeline.
fn exchanged(record: &Value, count: usize) {
    let predicted = &record["exchange"];
    assert_eq!(predicted["ring"]["ranks"], count);
    assert_eq!(predicted["link_measured"], true);
    let seconds = |key: &str| record[key].as_f64().expect("seconds");
    assert!(seconds("measured_exchange_s") > 0.0);
    let added = added(&predicted["taken"]);
    assert!(added > 0.0 && added < seconds("predicted_step_s"));
    // Each bucket holds whether a rank has failed, and the last one the loss, in 32 bits each.
    let taken = |key: &str| predicted["taken"][key].as_u64().expect("a number");
    let exchanges = record["timeline"]["exchanges"].as_array().expect("a list");
    let of = |what: &str| {
        let of = exchanges.iter().filter(|one| one["what"] == what);
        let bytes: Vec<u64> = of
            .map(|one| one["bytes"].as_u64().expect("bytes"))
            .collect();
        (bytes.len() as u64, bytes.iter().sum::<u64>())
    };
    let (buckets, bytes) = of("gradients");
    assert_eq!(buckets, taken("buckets"));
    assert_eq!(bytes, taken("bytes") + 4 * (buckets + 1));
    assert_eq!(of("mean").0, taken("means"));
    assert_eq!(of("parameters").1, taken("parameter_bytes"));
}

/// A run's trace has what the network did on a track of its own, and its picture names it.
fn shown_beside_the_actions(record: &Value, run: &Path) {
    let output = rekindle(run, &["report", ".", "-o", "trace.json"]);
    assert!(output.status.success(), "{}", messages(&output));
    let read = |file: &str| fs::read_to_string(run.join(file)).expect("written");
    let trace: Value = serde_json::from_str(&read("trace.json")).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("a list");
    let exchanges = events.iter().filter(|event| event["cat"] == "exchange");
    let shown: Vec<_> = exchanges
        .map(|event| {
            assert!(event["tid"] != events[0]["tid"]);
            event["args"]["bytes"].clone()
        })
        .collect();
    let recorded = record["timeline"]["exchanges"].as_array().expect("a list");
    let recorded: Vec<_> = recorded.iter().map(|one| one["bytes"].clone()).collect();
    assert_eq!(shown, recorded);
    assert!(read("timeline.svg").contains(">exchange "));
}

/// Share of what the plain step of a rank takes.
const TIGHT: f64 = 0.9;

/// Trains by one process and by several ranks, plain and within a [tight](TIGHT) budget.
fn ranks_train_as_one(config: &str, counts: &[usize]) {
    let Some(_turn) = turn() else {
        return;
    };
    let folder = folder(config);
    let alone = trained(1, &folder, "alone", &[]);
    assert_eq!(alone["ranks"].as_array().map(Vec::len), Some(0));
    let expected = losses(&folder, "alone");
    assert_eq!(expected.len(), 20);
    for &count in counts {
        let [plain, tight] = ["plain", "tight"].map(|run| format!("{run}-{count}"));
        let record = trained(count, &folder, &plain, &[]);
        all_close(&expected, &losses(&folder, &plain));
        exchanged(&record, count);
        shown_beside_the_actions(&record, &folder.path().join(&plain));
        let evaluation = &record["evaluation"];
        assert_eq!(evaluation["samples"], alone["evaluation"]["samples"]);
        assert_eq!(evaluation["accuracy"], alone["evaluation"]["accuracy"]);
        if let Some(loss) = evaluation["loss"].as_f64() {
            close(alone["evaluation"]["loss"].as_f64().expect("a loss"), loss);
        }

        let peak = record["predicted_peak_bytes"].as_f64().expect("bytes");
        let budget = format!("{}B", (peak * TIGHT) as u64);
        let record = trained(count, &folder, &tight, &["--budget", &budget]);
        assert!(record["recomputed"].as_u64() > Some(0));
        within_budgets(&record, count);
        all_close(&expected, &losses(&folder, &tight));
    }
}

#[test]
fn two_ranks_train_an_mlp_as_one_process() {
    ranks_train_as_one(MLP, &[2]);
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn more_ranks_train_an_mlp_as_one_process() {
    ranks_train_as_one(MLP, &[3, 4]);
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn ranks_train_a_transformer_as_one_process() {
    ranks_train_as_one(GPT, &[2, 3]);
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn ranks_train_a_synchronised_cnn_as_one_process() {
    ranks_train_as_one(CNN, &[2, 3]);
}

/// Six square layers, which 2 and 3 ranks share out evenly but for biases and the last layer. All gradients go into one
/// bucket: of several, as many are on their way at once as the network is slow.
const WIDE: &str = r#"
[data]
synthetic = { shape = [384], target = { classes = 4 }, samples = 40 }

[model]
layers = [{ repeat = { times = 6, layers = [{ linear = { out = 384 } }, "tanh"] } }, { linear = { out = 4 } }]

[train]
steps = 6
batch = 11
optimizer = "adam"
learning_rate = 1e-3

[run]
snapshot_every = 3
"#;

const SHARDED: [&str; 2] = ["--optimizer-state", "sharded"];

/// The parameters that a run has left.
fn weights(folder: &TempDir, run: &str) -> Vec<u8> {
    let file = folder.path().join(run).join("weights.safetensors");
    fs::read(file).expect("weights")
}

/// How far bytes may be from a closed form, relative: biases are not shared out evenly, tensors have headers, and threads
/// have scratch.
const PEAKS: f64 = 0.03;

#[test]
fn a_sharded_state_takes_its_share_of_memory_and_gives_the_same_bits() {
    shares_a_state(2);
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn three_ranks_share_a_state() {
    shares_a_state(3);
}

fn shares_a_state(count: usize) {
    let Some(_turn) = turn() else {
        return;
    };
    let folder = folder(WIDE);
    let parameters = 6 * (384 * 384 + 384) + 384 * 4 + 4;
    let [whole, sharded, tight] = ["whole", "sharded", "tight"].map(|run| format!("{run}-{count}"));
    let with_whole = trained(count, &folder, &whole, &[]);
    let with_sharded = trained(count, &folder, &sharded, &SHARDED);
    assert_eq!(losses(&folder, &whole), losses(&folder, &sharded));
    assert_eq!(weights(&folder, &whole), weights(&folder, &sharded));
    // Adam keeps two numbers of 4 bytes for each parameter, and a rank leaves those of the others to them.
    let others = (parameters * (count - 1) / count) as f64;
    let mut needed = 0;
    for rank in 0..count {
        for key in ["predicted_peak_bytes", "measured_peak_bytes"] {
            let bytes = |record: &Value| record["ranks"][rank][key].as_u64().expect("bytes");
            let (whole, sharded) = (bytes(&with_whole), bytes(&with_sharded));
            needed = needed.max(sharded);
            let (less, expected) = (whole as f64 - sharded as f64, 8.0 * others);
            eprintln!(
                "{count} ranks, rank {rank}, {key}: {whole} and {sharded}, {less} less, {expected}"
            );
            assert!(
                (less - expected).abs() <= PEAKS * expected,
                "{less}, {expected}"
            );
        }
    }
    // A budget that the whole state exceeds.
    let budget = format!("{}B", needed + needed / 50);
    let record = trained(
        count,
        &folder,
        &tight,
        &[&SHARDED[..], &["--budget", &budget]].concat(),
    );
    within_budgets(&record, count);
    assert_eq!(weights(&folder, &whole), weights(&folder, &tight));
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn a_state_is_sharded_where_a_budget_is_not_met_otherwise() {
    let Some(_turn) = turn() else {
        return;
    };
    let folder = folder(WIDE);
    trained(1, &folder, "alone", &[]);
    let expected = losses(&folder, "alone");
    for count in [2, 4] {
        let name = |run: &str| format!("{run}-{count}");
        let peak = |record: &Value| {
            let ranks = record["ranks"].as_array().expect("a list").iter();
            let keys = ["predicted_peak_bytes", "measured_peak_bytes"];
            let peaks = ranks.flat_map(|rank| keys.map(|key| rank[key].as_u64()));
            peaks.max().flatten().expect("bytes")
        };
        let sharded = trained(count, &folder, &name("asked"), &SHARDED);
        assert_eq!(sharded["optimizer_state"]["chosen"], "sharded");
        exchanged(&sharded, count);
        let state = &sharded["optimizer_state"];
        // Adam keeps two numbers for each of the four-byte numbers that are sent.
        let whole = 2 * sharded["exchange"]["taken"]["parameter_bytes"]
            .as_u64()
            .expect("bytes");
        let held = state["whole_bytes"].as_f64().expect("bytes");
        assert!((held - whole as f64).abs() <= PEAKS * held, "{state}");
        let (mut whole_least, mut saved) = (0.0, 0.0);
        for (run, budget, chosen) in [
            ("ample", 4 * peak(&sharded), "whole"),
            ("tight", peak(&sharded) * 51 / 50, "sharded"),
        ] {
            let bytes = format!("{budget}B");
            let record = trained(count, &folder, &name(run), &["--budget", &bytes]);
            let state = &record["optimizer_state"];
            eprintln!("{count} ranks, budget {budget}: {state}");
            assert_eq!(state["chosen"], chosen);
            let least = state["because"]["smallest_bytes"].as_u64();
            let bytes = |key: &str| state[key].as_f64().expect("bytes");
            saved = bytes("whole_bytes") - bytes("sharded_bytes");
            whole_least = least.unwrap_or_default() as f64;
            assert_eq!(least.is_some_and(|least| least > budget), run == "tight");
            within_budgets(&record, count);
            all_close(&expected, &losses(&folder, &name(run)));
            assert_eq!(
                weights(&folder, &name("asked")),
                weights(&folder, &name(run))
            );
        }
        // Of all ways, the one that takes least: budgets are tried in steps of 1/64.
        let plan = [
            "plan", "run.toml", "--device", "cpu", "--budget", "2MiB", "--json",
        ];
        let output = ranks(count, folder.path(), &plan)
            .output()
            .expect("started");
        assert_eq!(output.status.code(), Some(3), "{}", messages(&output));
        let least = document(&output)["smallest_budget_bytes"].as_u64();
        let least = least.expect("bytes") as f64;
        assert!(
            least <= whole_least - 0.8 * saved,
            "{least}, {whole_least}, {saved}"
        );
    }
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn a_sharded_state_is_updated_in_the_backward_pass_where_nothing_else_fits() {
    let Some(_turn) = turn() else {
        return;
    };
    // Gradients of 24 MiB, of which the exchange holds as much as of a few.
    let wide = WIDE
        .replace("384", "1024")
        .replace("steps = 6", "steps = 2");
    let folder = folder(&wide);
    trained(1, &folder, "alone", &[]);
    let peak = |update: &str| {
        let plan = ["plan", "run.toml", "--device", "cpu", "--json"];
        let more = [&SHARDED[..], &["--update", update]].concat();
        let output = ranks(2, folder.path(), &[&plan[..], &more].concat()).output();
        let plan = document(&output.expect("started"));
        plan["predicted_peak_bytes"].as_u64().expect("bytes")
    };
    let (after, in_backward) = (peak("after"), peak("in-backward"));
    assert!(in_backward < after, "{in_backward}, {after}");
    let budget = format!("{}B", (in_backward + after) / 2);
    let record = trained(2, &folder, "tight", &["--budget", &budget]);
    assert_eq!(record["optimizer_state"]["chosen"], "sharded");
    assert_eq!(record["update"], "in-backward");
    within_budgets(&record, 2);
    all_close(&losses(&folder, "alone"), &losses(&folder, "tight"));
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn master_weights_clipping_and_updates_in_the_backward_pass_go_with_a_sharded_state() {
    let Some(_turn) = turn() else {
        return;
    };
    let folder = folder(GPT);
    // With a dynamic scale.
    let half = ["--steps", "4", "--dtype", "f16"];
    trained(2, &folder, "whole", &half);
    trained(2, &folder, "sharded", &[&half[..], &SHARDED].concat());
    assert_eq!(weights(&folder, "whole"), weights(&folder, "sharded"));

    let folder = self::folder(WIDE);
    trained(3, &folder, "whole", &[]);
    let update = ["--update", "in-backward"];
    trained(3, &folder, "sharded", &[&SHARDED[..], &update].concat());
    assert_eq!(weights(&folder, "whole"), weights(&folder, "sharded"));
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn snapshots_of_a_sharded_state_continue_with_any_ranks_whole_or_sharded() {
    let Some(_turn) = turn() else {
        return;
    };
    let folder = folder(WIDE);
    trained(2, &folder, "whole", &[]);
    let resumed = |count: usize, run: &str, more: &[&str]| {
        let arguments = [&["train", "--resume", run, "--json"], more].concat();
        let output = match count {
            1 => rekindle(folder.path(), &arguments),
            _ => ranks(count, folder.path(), &arguments)
                .output()
                .expect("started"),
        };
        assert!(output.status.success(), "{}", messages(&output));
        let record = document(&output);
        assert!(record["resumed_at"].as_u64() > Some(0));
    };
    for (run, before, after) in [
        ("first", "sharded", "whole"),
        ("second", "whole", "sharded"),
    ] {
        let state = |state| ["--optimizer-state", state];
        trained(
            2,
            &folder,
            run,
            &[&state(before)[..], &["--steps", "3"]].concat(),
        );
        resumed(2, run, &[&state(after)[..], &["--steps", "6"]].concat());
        assert_eq!(losses(&folder, "whole"), losses(&folder, run));
        assert_eq!(weights(&folder, "whole"), weights(&folder, run));
    }
    trained(
        3,
        &folder,
        "any",
        &[&SHARDED[..], &["--steps", "2"]].concat(),
    );
    for (count, steps) in [(2, "3"), (1, "4"), (3, "6")] {
        resumed(count, "any", &["--steps", steps]);
    }
    all_close(&losses(&folder, "whole"), &losses(&folder, "any"));
}

/// Parameters of `MLP`.
const MLP_PARAMETERS: u64 = (32 * 64 + 64) + 11 * (64 * 64 + 64) + (64 * 5 + 5);

/// A link so slow that it outweighs all that is computed.
const SLOW: [&str; 4] = ["--ranks", "4", "--link", "10MB/s,100ms"];

#[test]
fn a_plan_says_what_a_link_adds_to_the_step_of_several_ranks() {
    let folder = folder(MLP);
    let plan = ["plan", "run.toml", "--device", "cpu", "--json"];
    let of_ranks = document(&rekindle(folder.path(), &[&plan[..], &SLOW].concat()));
    assert_eq!(of_ranks["exchange"]["link_measured"], false);
    let taken = &of_ranks["exchange"]["taken"];
    let bytes = MLP_PARAMETERS * 4;
    assert_eq!(taken["bytes"], bytes);
    // One bucket: six messages of a quarter, all of it after the backward pass.
    assert_eq!(taken["buckets"], 1);
    let network = 6.0 * (0.1 + bytes as f64 / 4.0 / 10e6);
    let seconds = |value: &Value| value.as_f64().expect("seconds");
    close(seconds(&taken["network_s"]), network);
    close(seconds(&taken["waited_s"]), network);
    close(added(taken), network + seconds(&taken["staged_s"]));
    let text = rekindle(folder.path(), &[&plan[..4], &SLOW].concat());
    let text = String::from_utf8_lossy(&text.stdout).replace("\n  ", " ");
    // A quarter of 1,001.
    assert!(text.contains("4 ranks of 251 samples"), "{text}");
    let efficiency = text.split("efficiency ").nth(1);
    let efficiency = efficiency.and_then(|rest| rest.split('%').next()?.parse().ok());
    assert!(
        efficiency.is_some_and(|percent: f64| percent < 10.0),
        "{text}"
    );
    assert_eq!(of_ranks["optimizer_state"]["chosen"], "whole");
    // A message of each parameter to three others, by a tree of two levels.
    let sent = 2.0 * (26.0 * 0.1 + bytes as f64 / 10e6);
    let by_message = seconds(&of_ranks["optimizer_state"]["sharded_s"]);
    assert!(
        (sent..1.1 * sent).contains(&by_message),
        "{by_message}, {sent}"
    );
    let alone = document(&rekindle(folder.path(), &plan));
    assert!(alone.get("exchange").is_none());
    let quiet = rekindle(folder.path(), &["plan", "run.toml", "--ranks", "4"]);
    assert_eq!(quiet.status.code(), Some(2));
    assert!(messages(&quiet).contains("--link 12GB/s,5us`"));
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn ranks_measure_their_link_for_a_plan() {
    let Some(_turn) = turn() else {
        return;
    };
    let folder = folder(MLP);
    let plan = ["plan", "run.toml", "--device", "cpu", "--json"];
    let output = ranks(2, folder.path(), &plan).output().expect("started");
    assert!(output.status.success(), "{}", messages(&output));
    let exchange = &document(&output)["exchange"];
    assert_eq!(exchange["link_measured"], true);
    assert_eq!(exchange["ring"]["ranks"], 2);
    assert!(exchange["ring"]["link"]["bytes_per_s"].as_f64() > Some(0.0));
    refused(
        ranks(2, folder.path(), &[&plan[..], &["--ranks", "3"]].concat()),
        2,
        "leave out `--ranks`",
    );
}

/// The processes that a job's `mpirun` has started, and it.
fn processes(job: &Child) -> (String, Vec<String>) {
    let children = |id: &str| -> Vec<String> {
        let text = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let text = text.expect("Linux tells");
        text.split_whitespace().map(str::to_owned).collect()
    };
    let [mpirun] = &children(&job.id().to_string())[..] else {
        panic!("`timeout` starts one process");
    };
    (mpirun.clone(), children(mpirun))
}

/// Whether a process is there that has not ended.
fn runs(id: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/stat"));
    let state = status
        .ok()
        .and_then(|text| text.rsplit_once(") ")?.1.chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// Starts an endless job, and sends a signal to one of its ranks, else to `mpirun`, once a snapshot is there.
fn signalled(folder: &TempDir, signal: &str, to: Option<usize>) -> Output {
    let endless = [
        "train",
        "run.toml",
        "--device",
        "cpu",
        "--steps",
        "100000000",
    ];
    let mut job = mpirun(folder.path());
    if to.is_none() {
        // Open MPI waits so many seconds before it hands the signal on, and again before it kills.
        job.args(["--mca", "odls_base_sigkill_timeout", "6"]);
    }
    job.args(["-n", "3"]).arg(cargo_bin("rekindle"));
    job.env("REKINDLE_RANK_TIMEOUT", PATIENCE);
    let mut job = job
        .args(endless)
        .args(["-o", "run"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut said = BufReader::new(job.stderr.take().expect("piped"));
    let (mut text, mut line) = (String::new(), String::new());
    while !folder.path().join("run/snapshot-5").is_file() {
        line.clear();
        let read = said.read_line(&mut line).expect("text");
        text += &line;
        assert!(read > 0, "{text}");
        if line.starts_with("step ") {
            while !folder.path().join("run/snapshot-5").is_file() {
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
    let (mpirun, ranks) = processes(&job);
    assert_eq!(ranks.len(), 3);
    let id = to.map_or(&mpirun, |rank| &ranks[rank]);
    let started = Instant::now();
    let killed = Command::new("kill").args([signal, id]).status();
    assert!(killed.expect("kill").success());
    let mut stderr = Vec::new();
    said.read_to_end(&mut stderr).expect("text");
    let output = job.wait_with_output().expect("a child");
    eprintln!("ended {:?} after {signal}", started.elapsed());
    while ranks.iter().any(|rank| runs(rank)) {
        assert!(started.elapsed() < HANGS, "a rank goes on");
        thread::sleep(Duration::from_millis(20));
    }
    assert_ne!(output.status.code(), Some(124), "the job hangs");
    assert!(!output.status.success());
    Output { stderr, ..output }
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn a_rank_that_hangs_ends_the_job_in_time() {
    let Some(_turn) = turn() else {
        return;
    };
    let folder = folder(MLP);
    let output = signalled(&folder, "-STOP", Some(1));
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let words = "have not answered for 4 s: one of them hangs";
    assert_eq!(said.matches(words).count(), 1, "{said}");
    assert!(said.contains("REKINDLE_RANK_TIMEOUT"), "{said}");
    // From what is there a job goes on.
    let steps = (losses(&folder, "run").len() + 5).to_string();
    let resume = ["train", "--resume", "run", "--steps", &steps];
    let output = ranks(2, folder.path(), &resume).output().expect("started");
    assert!(output.status.success(), "{}", messages(&output));
}

#[test]
fn a_job_that_lost_a_rank_continues_with_other_ranks() {
    let Some(_turn) = turn() else {
        return;
    };
    let folder = folder(MLP);
    signalled(&folder, "-KILL", Some(1));
    let lost = losses(&folder, "run").len();
    // The newest snapshot is from a step before.
    let steps = (lost + 20).to_string();
    trained(1, &folder, "alone", &["--steps", &steps]);
    let expected = losses(&folder, "alone");
    for (count, more) in [(2, 10), (3, 5)] {
        let done = losses(&folder, "run").len().max(lost);
        let steps = (done + more).to_string();
        let resume = ["train", "--resume", "run", "--steps", &steps, "--json"];
        let output = ranks(count, folder.path(), &resume).output();
        let output = output.expect("started");
        assert!(output.status.success(), "{}", messages(&output));
        let record = document(&output);
        assert!(record["resumed_at"].as_u64() > Some(0));
        assert_eq!(
            record["ranks"].as_array().map(Vec::len),
            Some(if count > 1 { count } else { 0 })
        );
        let all = losses(&folder, "run");
        all_close(&expected[..all.len()], &all);
    }
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn a_rank_that_runs_short_of_memory_plans_smaller_and_all_repeat_the_batch() {
    let Some(_turn) = turn() else {
        return;
    };
    // Each of two ranks has the activations of one.
    let folder = folder(&LARGE.replace("80000", "160000"));
    trained(2, &folder, "whole", &[]);
    let train = [
        "train", "run.toml", "--device", "cpu", "--json", "-o", "short",
    ];
    let mut job = ranks(2, folder.path(), &train);
    let job = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut job = job.expect("started");
    let mut said = BufReader::new(job.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.starts_with("step 1/") {
        line.clear();
        assert!(said.read_line(&mut line).expect("text") > 0);
    }
    let (_, ranks) = processes(&job);
    limit_below_peak(&ranks[1], 2 * ACTIVATION);
    let mut stderr = Vec::new();
    said.read_to_end(&mut stderr).expect("text");
    let output = job.wait_with_output().expect("a child");
    let output = Output { stderr, ..output };
    assert!(output.status.success(), "{}", messages(&output));
    let record = document(&output);
    assert_eq!(record["ranks"][0]["replans"], 0);
    assert!(record["ranks"][1]["replans"].as_u64() > Some(0), "{record}");
    assert_eq!(losses(&folder, "short"), losses(&folder, "whole"));
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn a_signal_ends_all_ranks_after_one_step_with_one_snapshot() {
    let Some(_turn) = turn() else {
        return;
    };
    // One snapshot of its own, after step 5.
    let config = MLP.replace(
        "snapshot_every = 5",
        "snapshot_every = 5\nkeep_snapshots = 1",
    );
    // All ranks have their part in the snapshot of a sharded state.
    let sharded = config.replace("[train]", "[train]\noptimizer_state = \"sharded\"");
    for (to, config) in [(None, &config), (Some(2), &sharded)] {
        let folder = folder(config);
        let output = signalled(&folder, "-TERM", to);
        let said = messages(&output);
        assert_eq!(said.matches("interrupted after step").count(), 1, "{said}");
        let record = fs::read(folder.path().join("run/run.json")).expect("a record");
        let record: Value = serde_json::from_slice(&record).expect("JSON");
        assert_eq!(record["interrupted"], true);
        let steps = losses(&folder, "run").len();
        assert_eq!(record["steps"], steps);
        let files = fs::read_dir(folder.path().join("run")).expect("a folder");
        let files = files.map(|file| file.expect("a file").file_name());
        let names = files.map(|name| name.to_string_lossy().into_owned());
        let mut snapshots: Vec<String> =
            names.filter(|name| name.starts_with("snapshot")).collect();
        snapshots.sort();
        // That of the best evaluation stays too.
        let best = record["best_evaluation"]["step"].as_u64();
        let mut expected =
            [best, Some(steps as u64)].map(|step| step.map(|step| format!("snapshot-{step}")));
        expected.sort();
        let mut expected: Vec<String> = expected.into_iter().flatten().collect();
        expected.dedup();
        assert_eq!(snapshots, expected);
    }
}

/// Runs a job that is refused: its code and messages.
#[track_caller]
fn refused(mut job: Command, code: i32, once: &str) {
    let output = job.output().expect("started");
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert_eq!(said.matches(once).count(), 1, "{once}: {said}");
    assert!(!said.contains("another rank"), "{said}");
}

#[test]
fn what_ranks_cannot_do_is_said_once() {
    let Some(_turn) = turn() else {
        return;
    };
    let folder = folder(MLP);
    let train = |count: usize, more: &[&str]| {
        let arguments = [&["train", "run.toml", "--device", "cpu"], more].concat();
        ranks(count, folder.path(), &arguments)
    };
    let few = "a batch of 2 cannot be shared by 3 ranks";
    refused(train(3, &["--batch", "2"]), 2, few);
    refused(train(2, &["--budget", "1KiB"]), 3, "try `--budget");
    let one_process = "`rekindle sweep` is one process";
    refused(
        ranks(2, folder.path(), &["sweep", "run.toml"]),
        2,
        one_process,
    );
    let parts = MLP.replace("batch = 1001", "batch = 1002\naccumulate = 3");
    fs::write(folder.path().join("run.toml"), parts).expect("written");
    refused(train(3, &[]), 2, "does not divide a rank's 334");
    fs::write(folder.path().join("run.toml"), "[model]\nlayer = 1\n").expect("written");
    refused(train(3, &[]), 2, "unknown key `layer`");
}

#[test]
#[ignore = "`.ci/full` runs it"]
fn ranks_that_differ_are_named_once() {
    let Some(_turn) = turn() else {
        return;
    };
    let folder = folder(MLP);
    let others = [
        (
            "rate",
            MLP.replace("1e-3", "2e-3"),
            2,
            "the config and its options of rank 1 differ",
        ),
        (
            "data",
            MLP.replace("samples = 1300", "samples = 1400"),
            2,
            "the data of rank 1 differ",
        ),
        ("none", NO_DATA.to_owned(), 5, "rank 1: "),
    ];
    for (name, config, code, once) in others {
        let file = format!("{name}.toml");
        fs::write(folder.path().join(&file), config).expect("written");
        let mut job = mpirun(folder.path());
        for (separator, config) in [(None, "run.toml"), (Some(":"), &file)] {
            job.args(separator)
                .args(["-n", "1"])
                .arg(cargo_bin("rekindle"));
            job.args(["train", config, "--device", "cpu"]);
        }
        refused(job, code, once);
    }
}

/// Both ranks of a job whose `mpirun` is not there: as it would, the test ends the other rank after the first.
#[test]
fn a_build_without_mpi_names_the_feature_once() {
    if cfg!(feature = "mpi") {
        eprintln!("skipped: this build has MPI");
        return;
    }
    let folder = folder(MLP);
    let rank = |rank: &str| {
        Command::new(cargo_bin("rekindle"))
            .envs([
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_COMM_WORLD_RANK", rank),
            ])
            .args(["train", "run.toml"])
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started")
    };
    let (first, mut other) = (rank("0"), rank("1"));
    let first = first.wait_with_output().expect("ended");
    assert_eq!(first.status.code(), Some(2));
    let said = messages(&first);
    assert_eq!(said.matches("`--features mpi`").count(), 1, "{said}");
    other.kill().expect("still waiting");
    let other = other.wait_with_output().expect("ended");
    assert_eq!(other.status.code(), None);
    assert_eq!(messages(&other), "");
}
