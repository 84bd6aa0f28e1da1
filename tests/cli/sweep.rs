//! `sweep` from end to end.

use std::collections::BTreeMap;
#[cfg(unix)]
use std::fs;
#[cfg(target_os = "linux")]
use std::{path::Path, process::Output};

use rekindle_plan::Bytes;
use serde_json::Value;

use crate::{
    picture,
    support::{document, folder, messages, rekindle},
};

/// Four linear blocks with nearly all memory in activations.
const CONFIG: &str = r#"[data]
synthetic = { shape = [64], target = { values = 4 }, samples = 4096 }

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

[run]
segments = 3
device = "cpu"
"#;

fn rows(document: &Value) -> &[Value] {
    document["rows"].as_array().expect("rows")
}

fn bytes(row: &Value, key: &str) -> u64 {
    row[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} in {row}"))
}

fn refused(arguments: &[&str], config: &str) -> (Option<i32>, String) {
    let folder = folder(config);
    let output = rekindle(folder.path(), arguments);
    assert_eq!(output.stdout, b"", "nothing was run");
    (output.status.code(), messages(&output))
}

#[test]
fn a_sweep_runs_plain_segments_budgets_and_the_configs_choice() {
    let folder = folder(CONFIG);
    let arguments = ["sweep", "run.toml", "--steps", "3", "--json", "-o", "out"];
    let output = rekindle(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    let sweep = document(&output);
    assert_eq!(sweep["format"], "rekindle-sweep/5");
    assert_eq!(sweep["interrupted"], false);
    let rows = rows(&sweep);
    assert_eq!(sweep["rows_asked"], rows.len());
    assert_eq!(rows[0]["asked"], "plain");
    let asked = |key: &str| rows.iter().filter(|row| row["asked"][key].is_u64()).count();
    // 2, 4 and 8 of the 14 stages, and the config's 3.
    assert_eq!(asked("segments"), 4, "{sweep}");
    let within = asked("budget_bytes");
    assert!(within >= 2 && 1 + 4 + within == rows.len(), "{sweep}");
    assert!(rows.iter().all(|row| row["outcome"] == "done"), "{sweep}");

    let own = |row: &&Value| row["asked"]["segments"] == 3;
    assert_eq!(rows.iter().filter(own).count(), 1, "the config's own");
    let peak = |row: &Value| bytes(row, "measured_peak_bytes");
    let planned = || {
        rows.iter()
            .filter(|row| row["asked"]["budget_bytes"].is_u64())
    };
    let plain = &rows[0];
    assert_eq!(plain["plain_after"], Value::Null);
    let quotient = |row: &Value, plain: &Value, [own, other]: [usize; 2]| {
        let end = |of: &Value, end: usize| of["step_range_s"][end].as_f64().expect("seconds");
        end(row, own) / end(plain, other)
    };
    for (place, row) in rows.iter().enumerate().skip(1) {
        // Plain runs before and after each other one.
        let before = match place {
            1 => plain,
            _ => &rows[place - 1]["plain_after"],
        };
        let turns = [before, &row["plain_after"]];
        let least = turns.map(|plain| quotient(row, plain, [0, 1]));
        let most = turns.map(|plain| quotient(row, plain, [1, 0]));
        let range = [least[0].min(least[1]), most[0].max(most[1])];
        assert_eq!(row["slowdown_range"], serde_json::json!(range), "{row}");
        let within = range[0]..=range[1];
        let slowdown = row["slowdown"].as_f64().expect("a quotient");
        assert!(within.contains(&slowdown), "{row}");
        assert!(peak(row) < peak(plain), "{row}");
        let own = bytes(row, "activation_bytes");
        assert!(own > 0 && own < peak(row), "{row}");
    }
    for row in planned() {
        assert!(peak(row) <= bytes(row, "budget_bytes"), "{row}");
        assert_eq!(row["fits"], true);
    }

    let read = |name: &str| fs::read_to_string(folder.path().join("out").join(name)).expect(name);
    let kept: Value = serde_json::from_str(&read("sweep.json")).expect("JSON");
    assert_eq!(kept, sweep);
    let csv = read("sweep.csv");
    let lines = csv::Reader::from_reader(csv.as_bytes()).into_deserialize();
    let lines: Vec<BTreeMap<String, String>> = lines.map(|line| line.expect("a line")).collect();
    assert_eq!(lines.len(), rows.len());
    for (line, row) in lines.iter().zip(rows) {
        let keys = row.as_object().expect("a row");
        for (key, cell) in line {
            let written = match keys.get(key) {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
            };
            assert_eq!(*cell, written, "{key}");
        }
        assert!(keys.keys().all(|key| line.contains_key(key)));
    }
    assert!(read("frontier.svg").contains("</svg>"));

    let output = rekindle(folder.path(), &["report", "out"]);
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    let page = read("report.html");
    for row in rows {
        for key in ["measured_peak_bytes", "predicted_peak_bytes"] {
            let number = bytes(row, key);
            assert!(
                page.contains(&format!("<data value=\"{number}\"")),
                "{key} {number}"
            );
        }
    }
    assert_eq!(page.matches("</svg>").count(), 1);
    for told in [
        "rekindle sweep run.toml --steps 3 --json -o out",
        "rekindle 0.",
    ] {
        assert!(page.contains(told), "{told}");
    }
    // The pointer shows each plan's budget over its mark.
    let svg = read("frontier.svg");
    for row in planned() {
        let (budget, peak) = (bytes(&row["asked"], "budget_bytes"), peak(row));
        let hint = format!("<title>plan {}: peak {}, step ", Bytes(budget), Bytes(peak));
        assert!(svg.contains(&hint), "{hint}: {svg}");
    }
    picture::check(&svg);
    // Bold lines are as long as the middle half of the steps, all on one scale.
    let lines = svg.split("<polyline").skip(1);
    let lines = lines.filter(|line| picture::attribute(line, "stroke-width") == Some("2"));
    let lines = lines.filter_map(|line| picture::attribute(line, "points"));
    let lines = lines.filter(|points| *points != "0,0 22,0");
    let heights = lines.map(|points| {
        let numbers = points.split([',', ' ']).map(|number| number.parse());
        let [_, from, _, to] = numbers.collect::<Result<Vec<f64>, _>>().expect("pixels")[..] else {
            panic!("{points}");
        };
        from - to
    });
    let seconds = rows.iter().map(|row| {
        let seconds = |end: usize| row["step_range_s"][end].as_f64().expect("seconds");
        seconds(1) - seconds(0)
    });
    let (heights, seconds): (Vec<f64>, Vec<f64>) = heights.zip(seconds).unzip();
    assert_eq!(heights.len(), rows.len());
    let scale = heights.iter().sum::<f64>() / seconds.iter().sum::<f64>();
    for (height, seconds) in heights.iter().zip(&seconds) {
        // Both ends are rounded to a tenth.
        assert!(
            (height - scale * seconds).abs() < 0.3,
            "{heights:?} {seconds:?}"
        );
    }
}

#[test]
fn budgets_that_no_plan_fits_stay_in_the_table() {
    let folder = folder(CONFIG);
    let arguments = ["sweep", "run.toml", "--steps", "1", "--budgets", "1kB,1GiB"];
    let output = rekindle(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("no plan fits 1000 B; the smallest budget is"),
        "{text}"
    );
    assert!(text.contains("plan 1.00 GiB"), "{text}");
    assert!(
        !text.contains("2 segments"),
        "budgets alone were asked for: {text}"
    );
    assert!(
        messages(&output).contains("1/4 plain: peak"),
        "{}",
        messages(&output)
    );
}

/// Layers that keep an output each and compute next to nothing.
#[cfg(target_os = "linux")]
const DEEP: &str = r#"[data]
synthetic = { shape = [64], target = { values = 4 }, samples = 32768 }

[model]
layers = [
  { linear = { out = 64 } },
  { repeat = { times = 32, layers = ["relu"] } },
  { linear = { out = 4 } },
]

[train]
steps = 1
batch = 32768
eval_split = 0
optimizer = "sgd"

[run]
device = "cpu"
"#;

/// Runs the program in so much address space.
#[cfg(target_os = "linux")]
fn in_address_space(folder: &Path, bytes: u64, arguments: &[&str]) -> Output {
    let setup = format!("ulimit -v {}", bytes >> 10);
    let mut command = crate::shell::after(&setup, folder, arguments);
    command.output().expect("started")
}

/// Address space that a run takes besides its tensors, to 32 MiB: what a run of next to no samples needs.
#[cfg(target_os = "linux")]
fn idle_address_space(folder: &Path) -> u64 {
    const UNIT: u64 = 32 << 20;
    let runs = |units: u64| {
        let arguments = ["train", "run.toml", "--batch", "2", "--planner", "none"];
        in_address_space(folder, units * UNIT, &arguments)
            .status
            .success()
    };
    let mut enough = 1;
    while !runs(enough) {
        enough *= 2;
        assert!(enough * UNIT <= 1 << 40, "the run itself fails");
    }
    let mut less = enough / 2;
    while less + 1 < enough {
        let middle = less.midpoint(enough);
        if runs(middle) {
            enough = middle;
        } else {
            less = middle;
        }
    }
    enough * UNIT
}

#[cfg(target_os = "linux")]
#[test]
fn rows_that_run_out_of_memory_stay_in_the_table() {
    let folder = folder(DEEP);
    let estimate = ["estimate", "run.toml", "--segments", "6", "--json"];
    let estimate = document(&rekindle(folder.path(), &estimate));
    let total = |step: &str| bytes(&estimate[step], "predicted_peak_bytes");
    let (plain, segments) = (total("plain"), total("plan"));
    // Room for the allocator's rounding on both sides.
    assert!(plain > 2 * segments, "{plain} against {segments}");
    let limit = idle_address_space(folder.path()) + plain.midpoint(segments);
    let sweep = [
        "sweep",
        "run.toml",
        "--steps",
        "1",
        "--segments",
        "6",
        "--json",
        "-o",
        "out",
    ];
    let sweep = document(&in_address_space(folder.path(), limit, &sweep));
    let rows = rows(&sweep);
    assert_eq!(rows.len(), 2, "{sweep}");
    assert_eq!(rows[0]["outcome"], "out_of_memory", "{sweep}");
    assert_eq!(rows[1]["outcome"], "done", "{sweep}");
    assert_eq!(rows[0]["measured_peak_bytes"], Value::Null);
    let seconds = |key: &str| rows[1][key].as_f64().expect("seconds");
    let slowdown = seconds("measured_step_s") / seconds("plain_step_s");
    assert_eq!(rows[1]["slowdown"], slowdown);
    rekindle(folder.path(), &["report", "out"]);
    let page = fs::read_to_string(folder.path().join("out/report.html")).expect("a page");
    assert!(page.contains("`x plain` is of"), "{page}");
}

#[cfg(unix)]
#[test]
fn an_interrupt_keeps_the_rows_that_are_done() {
    let folder = folder(CONFIG);
    let asked = ["sweep", "run.toml", "--segments", "2,4", "--steps", "40"];
    let sweep = [&asked[..], &["-o", "out"]].concat();
    let output =
        crate::signal::signalled(folder.path(), &sweep, |line| line.starts_with("2/"), "-INT");
    let rest = messages(&output);
    assert_eq!(output.status.code(), Some(130), "{rest}");
    assert!(rest.contains("they are in out"), "{rest}");
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        table.contains("plain") && rest.contains("interrupted with"),
        "{table}"
    );
    let kept = fs::read_to_string(folder.path().join("out/sweep.json")).expect("kept");
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!(kept["interrupted"], true);
    let done = rows(&kept).len();
    assert!((2..4).contains(&done), "{kept}");

    let again = rekindle(folder.path(), &sweep);
    assert_eq!(again.status.code(), Some(2), "{}", messages(&again));
    let words = "holds files already";
    assert!(messages(&again).contains(words), "{}", messages(&again));
}

/// The first layers of a model that reads text.
#[cfg(target_os = "linux")]
const PIPE_LAYERS: &str =
    "{ embedding = { dim = 8 } }, 'flatten', { linear = { out = 64 } },\n  { repeat";

/// The processes that have this path in their environment.
#[cfg(target_os = "linux")]
fn processes_of(path: &Path) -> Vec<String> {
    let path = path.to_str().expect("text");
    let commands = fs::read_dir("/proc")
        .expect("processes")
        .filter_map(|entry| {
            let process = entry.ok()?.path();
            let read = |file| {
                let text = fs::read(process.join(file)).ok()?;
                Some(String::from_utf8_lossy(&text).replace('\0', " "))
            };
            let environment = read("environ")?;
            environment.contains(path).then(|| read("cmdline"))?
        });
    commands.collect()
}

/// Looks until `found` is true of the processes that have this path in their environment.
#[cfg(target_os = "linux")]
fn wait_for(path: &Path, found: impl Fn(&[String]) -> bool) {
    const LOOKS: usize = 1_200;
    for _ in 0..LOOKS {
        if found(&processes_of(path)) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{:?}", processes_of(path));
}

#[cfg(target_os = "linux")]
#[test]
fn a_killed_sweep_or_max_leaves_no_child() {
    // Reads its data from a pipe that nothing writes to: the run that confirms an answer waits for ever.
    let waits = CONFIG
        .replace("{ linear = { out = 64 } },\n  { repeat", PIPE_LAYERS)
        .replace("out = 64 ", "out = 2000 ")
        .replace("out = 4 ", "out = 256 ");
    let (_, rest) = waits.split_once("[model]").expect("a model");
    let waits = format!("[data]\ntext = {{ files = ['pipe'], window = 8 }}\n[model]{rest}");
    let max = "max --vary depth --budget 512MiB --confirm";
    for (config, typed) in [(CONFIG, "sweep --steps 100000000"), (&waits, max)] {
        let folder = folder(config);
        let config = folder.path().join("run.toml");
        let pipe = std::process::Command::new("mkfifo")
            .arg(folder.path().join("pipe"))
            .status();
        assert!(pipe.expect("mkfifo").success());
        let mut command = crate::support::program(folder.path(), &[]);
        command.args(typed.split(' ')).arg(&config);
        command.env("OF_THIS_TEST", &config);
        command.stderr(std::process::Stdio::null());
        let mut command = command.spawn().expect("started");
        wait_for(&config, |commands| {
            commands
                .iter()
                .any(|command| command.contains("rekindle train "))
        });
        // SIGKILL: nothing of the command's own runs any more.
        command.kill().expect("killed");
        command.wait().expect("ended");
        wait_for(&config, |commands| commands.is_empty());
    }
}

#[test]
fn what_a_sweep_cannot_run_is_refused_before_anything_runs() {
    for (arguments, words) in [
        (&["--segments", "2,x"][..], "invalid value 'x'"),
        (
            &["--segments", "2,0"],
            "cannot cut 14 stages into 0 segments",
        ),
        (&["--budgets", "1MiB,0MiB"], "a size of 0"),
        (&["--steps", "0"], "`steps` must be at least 1"),
    ] {
        let (code, message) = refused(&[&["sweep", "run.toml"], arguments].concat(), CONFIG);
        assert_eq!(code, Some(2), "{message}");
        assert!(message.contains(words), "{words} in {message}");
    }
}

#[test]
fn a_folder_that_cannot_take_a_sweep_is_refused_before_anything_runs() {
    let folder = folder(CONFIG);
    fs::write(folder.path().join("file"), "").expect("written");
    for (output, code) in [("file", 5), ("file/out", 5), (".", 2)] {
        let run = rekindle(folder.path(), &["sweep", "run.toml", "-o", output]);
        assert_eq!(run.status.code(), Some(code), "{}", messages(&run));
        assert!(messages(&run).contains(output), "{}", messages(&run));
        assert_eq!(run.stdout, b"");
    }
}

#[test]
fn an_error_that_all_rows_share_ends_the_sweep_at_once() {
    let config = CONFIG.replace("samples = 4096", "samples = 100");
    let (code, message) = refused(&["sweep", "run.toml"], &config);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("a batch of 512 samples"), "{message}");
}
