//! Flags that change how a command works, not what it is asked.

use std::fs;

use serde_json::{Value, json};

use crate::support::{document, folder, messages, rekindle};

/// With SGD at a rate at which the first step overflows.
const OVERFLOWS: &str = r#"[data]
synthetic = { shape = [24], target = { values = 8 }, samples = 64 }

[model]
layers = [
  { repeat = { times = 4, layers = [{ linear = { out = 48 } }, "gelu"] } },
  { linear = { out = 8 } },
]

[train]
steps = 3
batch = 16
optimizer = "sgd"
learning_rate = 1e30

[run]
segments = 3
device = "cpu"
"#;

fn train(config: &str, arguments: &[&str]) -> Value {
    let folder = folder(config);
    let arguments = [&["train", "run.toml", "--json"], arguments].concat();
    let output = rekindle(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    document(&output)
}

/// With weights that outweigh the activations.
const WIDE: &str = r#"[data]
synthetic = { shape = [64], target = { classes = 4 }, samples = 64 }

[model]
layers = [
  { repeat = { times = 12, layers = [{ linear = { out = 256 } }, "tanh"] } },
  { linear = { out = 4 } },
]

[train]
steps = 4
batch = 8
optimizer = "adam"

[run]
device = "cpu"
"#;

#[test]
fn an_update_in_backward_changes_the_peak_alone() {
    let after = train(WIDE, &["--planner", "none"]);
    let updating = ["--planner", "none", "--update", "in-backward"];
    let in_backward = train(WIDE, &updating);
    assert_eq!(after["settings"]["update"], "auto");
    assert_eq!(after["update"], "after");
    assert_eq!(in_backward["settings"]["update"], "in-backward");
    assert_eq!(in_backward["update"], "in-backward");
    assert_eq!(after["last_loss"], in_backward["last_loss"]);
    let bytes = |record: &Value, key: &str| record[key].as_u64().expect("bytes");
    let gradients = 4 * bytes(&after, "param_count");
    let (before, now) = (
        bytes(&after, "measured_peak_bytes"),
        bytes(&in_backward, "measured_peak_bytes"),
    );
    assert!(now + gradients / 2 < before, "{now} instead of {before}");

    // The plain loop has all gradients, and the same parameters.
    let folder = folder(WIDE);
    let verify = ["verify", "run.toml", "--update", "in-backward"];
    let verified = rekindle(folder.path(), &verify);
    assert_eq!(verified.status.code(), Some(0), "{}", messages(&verified));

    let refused = |arguments: &[&str]| {
        let arguments = [&["train", "run.toml", "--update", "in-backward"], arguments].concat();
        let output = rekindle(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "{}", messages(&output));
        messages(&output)
    };
    assert!(refused(&["--on-nonfinite", "skip"]).contains("on_nonfinite"));
    let parts = self::folder(&WIDE.replace("batch = 8", "batch = 8\naccumulate = 2"));
    let arguments = ["estimate", "run.toml", "--update", "in-backward"];
    let output = rekindle(parts.path(), &arguments);
    assert_eq!(output.status.code(), Some(2), "{}", messages(&output));
    assert!(messages(&output).contains("accumulate"));
    let verify = ["verify", "run.toml", "--segments", "2", "--steps", "1"];
    let verified = rekindle(parts.path(), &verify);
    let text = String::from_utf8_lossy(&verified.stdout);
    assert!(text.contains("only the first of the 2 parts"), "{text}");
}

/// Gradients of the last weight are up to half the scale of the loss times an activation: more than `f16` has, at first.
const HALF: &str = r#"[data]
synthetic = { shape = [8], target = { classes = 4 }, samples = 64 }

[model]
layers = [{ linear = { out = 32 } }, "layer_norm", "relu", { linear = { out = 4 } }]

[train]
steps = 6
batch = 2
dtype = "f16"

[run]
device = "cpu"
"#;

#[test]
fn a_half_type_has_master_weights_and_a_scaled_loss() {
    let run = folder(HALF);
    let output = rekindle(run.path(), &["train", "run.toml", "-o", "run", "--json"]);
    let (said, record) = (messages(&output), document(&output));
    assert_eq!(output.status.code(), Some(0), "{said}");
    let skipped = record["overflow_steps"].as_u64().expect("a number");
    assert!((1..6).contains(&skipped), "{record}");
    let scale = 65536 >> skipped;
    assert_eq!(record["loss_scale"], f64::from(scale));
    assert!(
        said.contains(&format!("skipped, and the scale falls to {scale}")),
        "{said}"
    );
    let history = fs::read_to_string(run.path().join("run/history.csv")).expect("a history");
    let marked = history.lines().filter(|line| line.ends_with(",true"));
    assert_eq!(marked.count() as u64, skipped);
    let output = rekindle(run.path(), &["train", "run.toml"]);
    let closing = String::from_utf8_lossy(&output.stdout);
    let steps = if skipped == 1 { "step" } else { "steps" };
    assert!(
        closing.contains(&format!(
            "{skipped} {steps} skipped because gradients overflowed; the loss scale is {scale}."
        )),
        "{closing}"
    );

    // Numbers of 4 bytes: two moments, and the copy of each parameter.
    let with = |keys: &str| HALF.replace("batch = 2", &format!("batch = 2\n{keys}"));
    let bare = with("master_weights = false");
    let state = |config: &str, arguments: &[&str]| {
        let arguments = [&["estimate", "run.toml", "--json"], arguments].concat();
        let estimate = document(&rekindle(folder(config).path(), &arguments));
        let bytes = estimate["plain"]["peak"]["optimizer_bytes"].as_u64();
        bytes.expect("bytes") / estimate["param_count"].as_u64().expect("a number")
    };
    assert_eq!(state(HALF, &[]), 12);
    assert_eq!(state(&bare, &[]), 8);
    assert_eq!(state(HALF, &["--dtype", "f32"]), 8);

    let off = train(&with("loss_scale = \"none\"\nmaster_weights = false"), &[]);
    assert_eq!(off["settings"]["loss_scale"], "none");
    assert_eq!(off["settings"]["master_weights"], false);
    assert_eq!(
        (&off["loss_scale"], &off["overflow_steps"]),
        (&Value::Null, &json!(0))
    );
    assert_eq!(train(HALF, &["--dtype", "bf16"])["loss_scale"], Value::Null);
    let fixed = train(&with("loss_scale = 256"), &["--update", "in-backward"]);
    assert_eq!(fixed["loss_scale"], 256.0);

    let refused = |arguments: &[&str], expected: &str| {
        let output = rekindle(run.path(), &[&["train", "run.toml"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{}", messages(&output));
        assert!(
            messages(&output).contains(expected),
            "{}",
            messages(&output)
        );
    };
    refused(&["--update", "in-backward"], "`loss_scale`");
    fs::write(run.path().join("bare.toml"), bare).expect("written");
    let resume = ["train", "bare.toml", "--resume", "run", "--steps", "8"];
    let other = messages(&rekindle(run.path(), &resume));
    assert!(other.contains("master_weights"), "{other}");
}

/// Layers whose gradients take about as much as their activations.
const BOTH: &str = r#"[data]
synthetic = { shape = [384], target = { classes = 256 }, samples = 480 }

[model]
layers = [
  { repeat = { times = 5, layers = [{ linear = { out = 384 } }, "gelu"] } },
  { linear = { out = 256 } },
]

[train]
steps = 3
batch = 384
optimizer = "sgd"

[run]
device = "cpu"
"#;

/// The smallest budget that plans with this update meet.
fn smallest(arguments: &[&str]) -> u64 {
    let folder = folder(BOTH);
    let arguments = [&["plan", "run.toml", "--json", "--budget", "1B"], arguments].concat();
    let output = rekindle(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(3), "{}", messages(&output));
    let smallest = document(&output)["smallest_budget_bytes"].as_u64();
    smallest.expect("bytes")
}

#[test]
fn a_budget_that_gradients_exceed_is_met_by_updates_in_backward() {
    let plain = train(BOTH, &[]);
    // Without a budget there is no reason.
    assert_eq!(plain["update"], "after");
    let after = smallest(&["--update", "after"]);
    let in_backward = smallest(&["--update", "in-backward"]);
    // The weights' gradients take as much as the weights, and with updates in the backward pass the largest operation is what
    // remains.
    let gradients = 4 * plain["param_count"].as_u64().expect("a count");
    assert!(
        in_backward + gradients / 4 < after,
        "{in_backward} instead of {after}"
    );

    let between = format!("{}B", (in_backward + after) / 2);
    let same = |record: &Value| assert_eq!(record["last_loss"], plain["last_loss"]);
    let ran = train(BOTH, &["--budget", &between]);
    assert_eq!(ran["update"], "in-backward");
    same(&ran);
    let [peak, budget] = ["measured_peak_bytes", "budget_bytes"].map(|key| ran[key].as_u64());
    assert!(peak <= budget, "{ran}");

    // A plan says so, and its file is run as it was made.
    let folder = folder(BOTH);
    let said = |arguments: &[&str]| {
        let output = rekindle(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let plan = ["plan", "run.toml", "--budget", &between, "-o", "plan.json"];
    let plan = said(&plan);
    assert!(
        plan.contains("in the backward pass: with updates"),
        "{plan}"
    );
    let ran = said(&["train", "run.toml", "--plan", "plan.json", "--json"]);
    let ran: Value = serde_json::from_str(&ran).expect("a record");
    assert_eq!(ran["update"], "in-backward");
    same(&ran);
}

/// As far as the plain step's peak is predicted by shapes.
const SHARE_TOLERANCE: f64 = 0.05;

#[test]
fn a_share_is_of_the_plain_steps_peak() {
    let config = WIDE
        .replace("samples = 64", "samples = 1024")
        .replace("batch = 8", "batch = 512");
    let plain = train(&config, &["--planner", "none"]);
    let plain = plain["measured_peak_bytes"].as_f64().expect("bytes");
    let folder = folder(&config);
    let typed = ["run.toml", "--budget", "70%", "--json"];
    let trained = rekindle(folder.path(), &[&["train"], &typed[..]].concat());
    let said = messages(&trained);
    assert_eq!(trained.status.code(), Some(0), "{said}");
    let trained = document(&trained);
    let budget = trained["budget_bytes"].as_f64().expect("bytes");
    let share = budget / plain;
    assert!((share / 0.7 - 1.0).abs() <= SHARE_TOLERANCE, "{share}");
    assert!(trained["measured_peak_bytes"].as_f64() <= Some(budget));
    let digits: String = said.chars().filter(|one| *one != ',').collect();
    assert!(said.contains("budget 70%: "), "{said}");
    assert!(digits.contains(&format!("({budget} bytes)")), "{said}");

    let profile = ["profile", "run.toml", "-o", "step.json"];
    assert_eq!(rekindle(folder.path(), &profile).status.code(), Some(0));
    let plan = |arguments: &[&str]| {
        let plan = ["plan", "--chain", "step.json", "--json"];
        document(&rekindle(folder.path(), &[&plan, arguments].concat()))
    };
    let whole = plan(&["--planner", "none"])["predicted_peak_bytes"].as_f64();
    let share = plan(&["--budget", "70%"])["budget_bytes"].as_f64();
    assert_eq!(share, whole.map(|whole| (whole * 0.7).floor()));
}

#[test]
fn a_plan_names_what_runs_again_and_a_longer_search_is_not_slower() {
    let many = BOTH.replace("samples = 480", "samples = 864");
    let folder = folder(&many.replace("batch = 384", "batch = 768"));
    let answer = |arguments: &[&str], code| {
        let output = rekindle(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(code), "{}", messages(&output));
        document(&output)
    };
    answer(&["profile", "run.toml", "-o", "chain.json", "--json"], 0);
    let refused = answer(&["plan", "run.toml", "--json", "--budget", "1B"], 3);
    let frontier = answer(&["plan", "run.toml", "--json", "--frontier"], 0);
    let bytes = |value: &Value| value.as_u64().expect("bytes");
    let first = bytes(&frontier["points"][0]["budget_bytes"]);
    let smallest = bytes(&refused["smallest_budget_bytes"]);
    assert!(first <= smallest + smallest / 20, "{first}, {smallest}");

    let plain = bytes(&frontier["points"][0]["plain_peak_bytes"]);
    let between = format!("{}B", (smallest + plain) / 2);
    let plan = |effort| {
        let asked = [
            "plan",
            "--chain",
            "chain.json",
            "--json",
            "--budget",
            &between,
        ];
        answer(&[&asked[..], &["--effort", effort]].concat(), 0)
    };
    let [usual, longer] = ["1", "4"].map(plan);
    let seconds = |plan: &Value| plan["predicted_step_s"].as_f64().expect("seconds");
    assert!(seconds(&longer) <= 1.02 * seconds(&usual));
    let extra = usual["extra"].as_array().expect("a list");
    let times = extra
        .iter()
        .map(|one| one["times"].as_u64().expect("a number"));
    assert_eq!(Some(times.sum()), usual["recomputed"].as_u64());
    let added = extra
        .iter()
        .map(|one| one["added_s"].as_f64().expect("seconds"));
    assert!(added.is_sorted_by(|one, next| one >= next), "{extra:?}");
    // burn's names, which a file of the chain alone does not have.
    let mut kinds = extra
        .iter()
        .map(|one| one["kind"].as_str().expect("a word"));
    assert!(
        kinds.all(|kind| kind.starts_with(char::is_uppercase)),
        "{extra:?}"
    );
}

#[test]
fn an_estimate_within_a_budget_updates_as_a_training_does() {
    let estimate = |config: &str, budget: u64, arguments: &[&str]| {
        let folder = folder(config);
        let budget = format!("{budget}B");
        let estimate = ["estimate", "run.toml", "--json", "--budget", &budget];
        let output = rekindle(folder.path(), &[&estimate[..], arguments].concat());
        let found = document(&output);
        let update = found["plain"]["update"]
            .as_str()
            .expect("a word")
            .to_owned();
        (output.status.code(), update, found)
    };
    let smallest = |update: &str| {
        let (code, said, refused) = estimate(BOTH, 1, &["--update", update]);
        assert_eq!((code, &*said), (Some(3), update));
        let smallest = &refused["smallest_budget_bytes"];
        smallest.as_u64().unwrap_or_else(|| panic!("{refused}"))
    };
    let (after, in_backward) = (smallest("after"), smallest("in-backward"));
    let between = (after + in_backward) / 2;
    let chosen = |config, budget| {
        let (code, update, _) = estimate(config, budget, &[]);
        (code, update)
    };
    assert_eq!(chosen(BOTH, between), (Some(0), "in-backward".into()));
    assert_eq!(chosen(BOTH, after + after / 50), (Some(0), "after".into()));
    let skips = BOTH.replace("[train]", "[train]\non_nonfinite = \"skip\"");
    assert_eq!(chosen(&skips, between), (Some(3), "after".into()));
}

#[test]
fn an_update_in_backward_is_checked_gradient_by_gradient() {
    let folder = folder(OVERFLOWS);
    let arguments = ["train", "run.toml", "--update", "in-backward", "-o", "run"];
    let stopped = rekindle(folder.path(), &arguments);
    assert_eq!(stopped.status.code(), Some(6), "{}", messages(&stopped));
    assert!(messages(&stopped).contains("is not finite"));
}

#[test]
fn both_counts_are_one_on_the_processor() {
    let config = OVERFLOWS.replace("1e30", "1e-3");
    for count in ["in-use", "reserved"] {
        let record = train(&config, &["--count", count]);
        assert_eq!(record["count"], count);
        assert!(record["measured_peak_bytes"].is_u64(), "{record}");
        for of in ["measured", "predicted"] {
            let [peak, in_use] =
                ["peak", "in_use"].map(|what| &record[format!("{of}_{what}_bytes")]);
            assert_eq!(peak, in_use);
        }
        assert_eq!(record["pools"], Value::Null);
    }
}

/// Recording and measuring so small a model takes more than running it.
#[test]
fn what_measuring_takes_counts() {
    let config = OVERFLOWS.replace("1e30", "1e-3");
    let folder = folder(&config);
    let with = |budget: &str| {
        let arguments = ["--budget", budget, "--json"];
        rekindle(
            folder.path(),
            &[&["train", "run.toml"][..], &arguments].concat(),
        )
    };
    let refused = document(&with("1B"));
    let smallest = refused["smallest_budget_bytes"].as_u64().expect("bytes");
    for budget in [smallest / 100 * 101, smallest / 4 * 5] {
        let record = document(&with(&format!("{budget}B")));
        let measured = record["measured_peak_bytes"].as_u64();
        assert!(
            measured.is_some_and(|peak| peak <= budget),
            "{budget}: {record}"
        );
    }
}

#[test]
fn a_quiet_run_ends_with_its_results() {
    let steps = OVERFLOWS.replace("1e30", "0.1");
    let folder = folder(&steps);
    let said = |flag: &[&str]| {
        let arguments = [&["train", "run.toml"], flag].concat();
        let output = rekindle(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
        let text = String::from_utf8(output.stdout.clone()).expect("text");
        (text, messages(&output))
    };
    let (usual, notes) = said(&[]);
    assert!(notes.contains("step 1/3"), "{notes}");
    let (quiet, notes) = said(&["--quiet"]);
    assert_eq!(notes, "");
    let lines = |text: &str| text.lines().count();
    assert_eq!(lines(&quiet), lines(&usual));
    // The verdict comes last, after where the run is, and no column is empty.
    let (kept, _) = said(&["-o", "runs/a"]);
    assert!(lines(&kept) <= 20, "{kept}");
    let (before, verdict) = kept
        .rsplit_once("\nCheckpointing saves")
        .expect("a verdict");
    assert!(lines(verdict) <= 2, "{verdict}");
    let page =
        "\n`rekindle report runs/a` makes a page of it; one step is drawn in runs/a/timeline.svg.";
    assert!(
        before.replace('\n', " ").contains(&page.replace('\n', " ")),
        "{kept}"
    );
    for line in usual.lines().chain(kept.lines()) {
        assert!(line.chars().count() <= 80, "{line}");
        assert!(line.split("  ").all(|cell| cell.trim() != "-"), "{line}");
    }
    let wrong = rekindle(folder.path(), &["train", "nothing.toml", "-q"]);
    assert!(messages(&wrong).contains("nothing.toml"));
}

#[test]
fn colours_are_used_where_they_are_asked_for() {
    let folder = folder(OVERFLOWS);
    let escapes = |when: &str| {
        let arguments = ["estimate", "nothing.toml", "--color", when];
        let output = rekindle(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(5), "{}", messages(&output));
        output.stderr.contains(&b'\x1b')
    };
    assert!(escapes("always"));
    assert!(!escapes("never"));
}

/// The command line is kept for people: other versions may have other options, and the config may be gone.
#[test]
fn a_run_goes_on_without_its_config_and_with_options_that_are_unknown() {
    let folder = folder(&OVERFLOWS.replace("1e30", "1e-3"));
    let arguments = ["train", "run.toml", "--device", "cpu", "-o", "run"];
    let begun = rekindle(folder.path(), &[&arguments[..], &["--steps", "2"]].concat());
    assert_eq!(begun.status.code(), Some(0), "{}", messages(&begun));
    let edit = |file: &str, from: &str, to: &str| {
        let path = folder.path().join("run").join(file);
        let text = fs::read_to_string(&path).expect("written");
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replacen(from, to, 1)).expect("written");
    };
    edit(
        "command.json",
        "\"train\",",
        "\"train\", \"--executor\", \"modules\",",
    );
    edit("run.json", "{", "{\"executor\": \"modules\",");
    fs::rename(
        folder.path().join("run.toml"),
        folder.path().join("moved.toml"),
    )
    .expect("moved");

    let on = |arguments: &[&str]| {
        let resume = ["train", "--resume", "run", "--json"];
        let output = rekindle(folder.path(), &[&resume[..], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
        document(&output)
    };
    let record = on(&["--steps", "3"]);
    assert_eq!(record["name"], "run.toml");
    assert_eq!(record["segments"].as_array().map(Vec::len), Some(3));
    assert_eq!(on(&["moved.toml", "--steps", "4"])["name"], "moved.toml");
    edit("run.json", "{", "{\"executor\": \"modules\",");
    let report = rekindle(folder.path(), &["report", "run"]);
    assert_eq!(report.status.code(), Some(0), "{}", messages(&report));

    fs::remove_file(folder.path().join("run/config.toml")).expect("removed");
    let refused = rekindle(folder.path(), &["train", "--resume", "run"]);
    let said = messages(&refused);
    assert_eq!(refused.status.code(), Some(5), "{said}");
    assert!(said.contains("there is no `config.toml`"), "{said}");
}

#[test]
fn a_config_in_the_folder_of_a_new_run_is_not_replaced() {
    let folder = folder(&OVERFLOWS.replace("1e30", "1e-3"));
    let config = folder.path().join("config.toml");
    fs::rename(folder.path().join("run.toml"), &config).expect("moved");
    let before = fs::read(&config).expect("a config");
    let refused = rekindle(folder.path(), &["train", "config.toml", "-o", "."]);
    let said = messages(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("would replace this file"), "{said}");
    assert_eq!(fs::read(&config).expect("a config"), before);
}

/// How far a sum over parts of a batch is from the whole batch's: rounding of `f32`, and of Adam's steps.
const PARTS_TOLERANCE: f64 = 1e-4;

#[test]
fn parts_of_a_batch_make_a_budget_possible() {
    let config = WIDE
        .replace("samples = 64", "samples = 1024")
        .replace("batch = 8", "batch = 512");
    let folder = folder(&config);
    let run = |arguments: &[&str]| {
        let typed = ["train", "run.toml", "--json", "--update", "after"];
        rekindle(folder.path(), &[&typed, arguments].concat())
    };
    let smallest = document(&run(&["--budget", "1kB"]))["smallest_budget_bytes"].clone();
    let smallest = smallest.as_u64().expect("bytes");
    let budget = format!("{}B", smallest - smallest / 20);
    assert_eq!(run(&["--budget", &budget]).status.code(), Some(3));
    let trained = run(&["--budget", &budget, "--accumulate", "auto", "-o", "run"]);
    assert_eq!(trained.status.code(), Some(0), "{}", messages(&trained));
    let trained = document(&trained);
    let parts = trained["settings"]["accumulate"].as_u64();
    assert!(parts > Some(1), "{trained}");
    assert!(trained["measured_peak_bytes"].as_u64() <= Some(smallest - smallest / 20));
    let whole = document(&run(&["--planner", "none", "--accumulate", "auto"]));
    assert_eq!(whole["settings"]["accumulate"], 1);
    let [off, loss] = [&trained, &whole].map(|run| run["last_loss"].as_f64().expect("a loss"));
    assert!(
        (off - loss).abs() <= PARTS_TOLERANCE * loss,
        "{off}, {loss}"
    );
    // What was found once stays.
    let resume = ["train", "--resume", "run", "--steps", "6", "--json"];
    let resumed = document(&rekindle(folder.path(), &resume));
    assert_eq!(resumed["settings"]["accumulate"].as_u64(), parts);

    let normed = config.replace("\"tanh\"", "\"batch_norm\"");
    fs::write(folder.path().join("run.toml"), normed).expect("written");
    let refused = run(&["--budget", &budget, "--accumulate", "auto"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(messages(&refused).contains("`--accumulate 4`"));
}
