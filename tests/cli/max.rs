//! `max` from end to end.

use serde_json::Value;

use crate::support::{document, folder, messages, rekindle};

const CONFIG: &str = r#"[data]
synthetic = { shape = [64], target = { values = 4 }, samples = 100000 }

[model]
layers = [
  { linear = { out = 64 } },
  { repeat = { times = 6, layers = [
    { linear = { out = 64 } },
    "gelu",
  ] } },
  { linear = { out = 4 } },
]

[train]
steps = 2
batch = 512
eval_split = 0
optimizer = "sgd"
"#;

fn max(config: &str, arguments: &[&str]) -> Value {
    let folder = folder(config);
    let all = [&["max", "run.toml", "--device", "cpu", "--json"], arguments].concat();
    let output = rekindle(folder.path(), &all);
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    document(&output)
}

/// Runs the command that was advised, for two steps.
fn run_of_advised(config: &str, found: &Value) -> Value {
    let advised = found["run"].as_str().expect("a command");
    let words: Vec<&str> = advised.split(' ').collect();
    assert_eq!(words[0], "rekindle");
    let folder = folder(config);
    let arguments = [&words[1..], &["--steps", "2", "--json"]].concat();
    let output = rekindle(folder.path(), &arguments);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{advised}: {}",
        messages(&output)
    );
    let run = document(&output);
    assert_eq!(run["budget_bytes"], found["budget_bytes"], "{advised}");
    run
}

/// The peak of that run.
fn peak_of_advised(config: &str, found: &Value) -> u64 {
    let run = run_of_advised(config, found);
    run["measured_peak_bytes"].as_u64().expect("a peak")
}

fn size(found: &Value, way: &str) -> u64 {
    let ways = found["largest"].as_array().expect("ways");
    let way = ways.iter().find(|largest| largest["way"] == way);
    way.and_then(|largest| largest["size"].as_u64())
        .unwrap_or_else(|| panic!("{found}"))
}

#[test]
fn the_largest_batch_fits_when_it_runs() {
    let budget = 8u64 << 20;
    let found = max(
        CONFIG,
        &["--vary", "batch", "--budget", "8MiB", "--confirm"],
    );
    assert_eq!(found["format"], "rekindle-max/3");
    let (plain, segments, plan) = (
        size(&found, "plain"),
        size(&found, "segments"),
        size(&found, "plan"),
    );
    assert!(plain < segments && segments <= plan, "{found}");
    let confirmed = &found["confirmed"];
    let peak = confirmed["measured_peak_bytes"].as_u64().expect("a peak");
    // Peaks of plans come in steps.
    assert!(peak <= budget && peak > budget * 17 / 20, "{found}");
    assert!(peak_of_advised(CONFIG, &found) <= budget);

    let ways = found["largest"].as_array().expect("ways");
    for way in ways {
        let [step, plain] = ["predicted_step_s", "plain_step_s"].map(|key| way[key].as_f64());
        let times = step.expect("seconds") / plain.expect("seconds");
        assert!(times <= 2.0, "twice the plain step at most: {way}");
        let parts = way["at_peak"].as_object().expect("parts").values();
        let parts = parts.map(|part| part.as_u64().expect("bytes"));
        assert_eq!(way["predicted_peak_bytes"], parts.sum::<u64>(), "{way}");
    }
}

/// Without parts a batch must fit whole, or recomputed.
#[test]
fn the_largest_batch_runs_in_the_parts_that_it_was_counted_with() {
    let budget = 4u64 << 20;
    let arguments = ["--vary", "batch", "--budget", "4MiB"];
    let whole = size(&max(CONFIG, &arguments), "plan");
    let auto = [&arguments[..], &["--accumulate", "auto"]].concat();
    let found = max(CONFIG, &auto);
    let plan = &found["largest"][2];
    let parts = plan["parts"].as_u64().expect("parts");
    assert!(
        parts > 1 && size(&found, "plan") > whole,
        "{whole}: {found}"
    );
    let run = run_of_advised(CONFIG, &found);
    assert_eq!(run["settings"]["accumulate"], parts, "{found}");
    let [predicted, measured] =
        ["predicted", "measured"].map(|one| run[format!("{one}_peak_bytes")].as_u64());
    assert!(measured <= Some(budget), "{run}");
    // Nothing is held for each part: there are hundreds.
    let times = measured.expect("bytes") as f64 / predicted.expect("bytes") as f64;
    assert!((0.98..=1.01).contains(&times), "{times}: {run}");
}

#[test]
fn where_the_data_ends_before_memory_does_that_is_said() {
    let config = CONFIG.replace("samples = 100000", "samples = 115");
    let arguments = ["--vary", "batch", "--budget", "1GiB"];
    let found = max(&config, &arguments);
    assert_eq!(size(&found, "plain"), 115);
    assert!(peak_of_advised(&config, &found) <= 1 << 30);

    let folder = folder(&config);
    let all = [&["max", "run.toml", "--device", "cpu"], &arguments[..]].concat();
    let output = rekindle(folder.path(), &all);
    let text = String::from_utf8_lossy(&output.stdout).replace('\n', " ");
    let said = "The limit is the data set (115 training samples), not memory.";
    assert!(text.contains(said), "{text}");
    assert!(
        text.contains("rekindle train run.toml --batch 115 --budget 1GiB --device cpu"),
        "{text}"
    );
}

#[test]
fn a_longer_step_buys_a_larger_size() {
    let reached = |slowdown: &str| {
        let arguments = [
            "--vary",
            "batch",
            "--budget",
            "8MiB",
            "--slowdown",
            slowdown,
        ];
        size(&max(CONFIG, &arguments), "plan")
    };
    let (plain, much) = (reached("1"), reached("4"));
    assert!(plain < much, "{plain} {much}");
}

/// Weights of 5,000-wide layers are 100 MB each: no schedule makes room for more of them, and an update in the backward
/// leaves weights alone of weights and gradients.
#[test]
fn where_all_is_weights_only_an_update_in_the_backward_helps() {
    let config = CONFIG
        .replace("out = 64", "out = 5000")
        .replace("batch = 512", "batch = 32");
    let depth = ["--vary", "depth", "--budget", "4GiB"];
    let chosen = max(&config, &depth);
    let update = |found: &Value| found["largest"][2]["update"].clone();
    assert_eq!(update(&chosen), "in-backward", "{chosen}");
    let after = [&depth[..], &["--update", "after"]].concat();
    let found = max(&config, &after);
    assert_eq!(update(&found), "after", "{found}");
    let plan = size(&found, "plan");
    assert!(plan - size(&found, "plain") <= 1, "{found}");
    // 97% of the budget, over weights and gradients.
    let of_layer = 2.0 * 4.0 * 5000.0 * 5001.0;
    let most = (0.97 * f64::from(1u32 << 31) * 2.0 / of_layer) as u64;
    assert!(plan <= most && plan + 2 >= most, "{plan} of {most}");
    let times = size(&chosen, "plan") as f64 / plan as f64;
    assert!((1.7..=2.0).contains(&times), "{times}: {chosen}");

    // Activations make room.
    let wide_batch = config.replace("batch = 32", "batch = 4096");
    let found = max(&wide_batch, &after);
    let (plain, plan) = (size(&found, "plain"), size(&found, "plan"));
    assert!(plan * 10 >= plain * 11, "{found}");
}

#[test]
#[ignore = "takes a minute: `.ci/full` runs it"]
fn the_largest_depth_is_one_that_plan_fits_and_a_deeper_one_it_does_not() {
    let arguments = ["--vary", "depth", "--budget", "5MiB", "--batch", "512"];
    let found = max(CONFIG, &[&arguments[..], &["--slowdown", "3"]].concat());
    assert_eq!(found["batch"], 512);
    let plan = size(&found, "plan");
    assert!(plan > size(&found, "plain"), "{found}");

    let folder = folder(CONFIG);
    let exits = |depth: u64| {
        let depth = depth.to_string();
        let plan = ["plan", "run.toml", "--device", "cpu", "--batch", "512"];
        let budget = ["--budget", "5MiB"];
        let arguments = [&plan[..], &budget, &["--depth", &depth]].concat();
        rekindle(folder.path(), &arguments).status.code()
    };
    // Sizes are counted, not measured, and half of so small a process is no layer's: right within 5%.
    assert_eq!(exits(plan * 19 / 20), Some(0), "{found}");
    // Searches take a little more than `plan` does.
    assert_eq!(exits(plan * 5 / 4 + 1), Some(3), "{found}");
}

#[test]
fn what_cannot_be_varied_is_refused() {
    let no_group = CONFIG
        .replace("repeat = { times = 6, layers = [", "residual = [")
        .replace("] } },", "] },");
    for (config, arguments, words) in [
        (
            no_group.as_str(),
            &["--vary", "depth"][..],
            "no group in `layers` has a `repeat`",
        ),
        (
            CONFIG,
            &["--vary", "batch", "--batch", "4"],
            "leave `--batch` out",
        ),
        (
            CONFIG,
            &["--vary", "batch", "--slowdown", "0.5"],
            "`--slowdown 0.5` is below 1",
        ),
        (
            CONFIG,
            &["--vary", "batch", "--depth", "0"],
            "`--depth 0`: `times` must be at least 1",
        ),
    ] {
        let folder = folder(config);
        let all = [&["max", "run.toml", "--device", "cpu"], arguments].concat();
        let output = rekindle(folder.path(), &all);
        let message = messages(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(words), "{words} in {message}");
    }
}

#[test]
fn a_budget_that_nothing_fits_says_so() {
    let folder = folder(CONFIG);
    let arguments = [
        "max", "run.toml", "--device", "cpu", "--vary", "batch", "--budget", "10kB",
    ];
    let output = rekindle(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("Not even batch 1 of run.toml fits 9.8 KiB"),
        "{text}"
    );
}
