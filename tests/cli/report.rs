//! `rekindle report`: pages of runs, and what is no run.

use std::{fs, path::Path};

use assert_cmd::Command;
use rekindle_plan::Bytes;
use serde_json::Value;

fn rekindle(arguments: &[&str]) -> assert_cmd::assert::Assert {
    Command::cargo_bin("rekindle")
        .expect("built")
        .env("REKINDLE_CACHE", "")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .args(arguments)
        .assert()
}

const CONFIG: &str = "configs/parity/mlp.toml";

fn train(folder: &Path, more: &[&str]) {
    train_config(CONFIG, folder, more);
}

fn train_config(config: &str, folder: &Path, more: &[&str]) {
    let folder = folder.to_str().expect("UTF-8");
    let train = ["train", config, "--device", "cpu", "-o", folder];
    rekindle(&[&train[..], more].concat()).success();
}

fn report(folders: &[&Path]) -> String {
    let folders = folders.iter().map(|folder| folder.to_str().expect("UTF-8"));
    let arguments: Vec<&str> = ["report", "--json"].into_iter().chain(folders).collect();
    let output = rekindle(&arguments).success().get_output().stdout.clone();
    let document: Value = serde_json::from_slice(&output).expect("one JSON document");
    assert_eq!(document["format"], "rekindle-report/2");
    fs::read_to_string(document["paths"][0].as_str().expect("a path")).expect("written")
}

fn bytes(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("bytes, not {value}"))
}

fn sum(parts: &Value) -> u64 {
    parts.as_object().expect("parts").values().map(bytes).sum()
}

#[test]
fn a_page_stands_alone_and_agrees_with_the_record_to_the_byte() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run <1>");
    // Wide enough that the step takes more than measuring it: else the predicted peak is on no timeline.
    let narrow = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/parity/mlp.toml");
    let narrow = fs::read_to_string(narrow).expect("a config");
    let wide = folder.path().join("wide.toml");
    fs::write(&wide, narrow.replace("out = 48", "out = 384")).expect("written");
    let wide = wide.to_str().expect("UTF-8");
    train_config(wide, &run, &["--batch", "128", "--segments", "2"]);
    let page = report(&[&run]);
    // What was typed, and by which version.
    for told in [
        "rekindle train ",
        "--batch 128 --segments 2",
        concat!(", rekindle ", env!("CARGO_PKG_VERSION")),
    ] {
        assert!(page.contains(told), "{told}");
    }

    let nothing_loaded = page.replace("http://www.w3.org/2000/svg", "");
    for loads in [
        "http", "<script", "<link", "<img", "src=", "href=", "url(", "@import",
    ] {
        assert!(!nothing_loaded.contains(loads), "{loads}");
    }
    let record: Value =
        serde_json::from_slice(&fs::read(run.join("run.json")).expect("written")).expect("JSON");
    let mut shown = vec![
        bytes(&record["predicted_peak_bytes"]),
        bytes(&record["measured_peak_bytes"]),
    ];
    let plain = Bytes(bytes(&record["plain_peak_bytes"])).to_string();
    assert!(page.contains(&plain), "{plain}");
    for step in record["phases"].as_array().expect("phases") {
        for phase in step["phases"].as_array().expect("phases") {
            shown.push(bytes(&phase["in_use_bytes"]));
            shown.push(bytes(&phase["peak_in_use_bytes"]));
        }
    }
    for number in shown {
        assert!(
            page.contains(&format!("<data value=\"{number}\"")),
            "{number}"
        );
    }

    let svg = fs::read_to_string(run.join("timeline.svg")).expect("written");
    let actions = record["timeline"]["actions"].as_array().expect("actions");
    let highest = actions
        .iter()
        .map(|action| sum(&action["predicted_at_peak"]));
    let highest = highest.max().expect("actions");
    assert_eq!(highest, bytes(&record["predicted_peak_bytes"]));
    let measured = actions
        .iter()
        .map(|action| bytes(&action["measured_peak_bytes"]));
    let label = format!(
        "predicted peak {}, measured {}",
        Bytes(highest),
        Bytes(measured.max().expect("actions"))
    );
    assert!(svg.contains(&label), "{label}");
    assert!(page.contains(&label), "{label}");
    crate::picture::check(&svg);
}

#[test]
fn each_folder_gets_its_page_and_runs_are_listed_beside_each_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let [plain, halves] = ["plain", "halves"].map(|name| folder.path().join(name));
    train(&plain, &["--planner", "none"]);
    train(&halves, &["--segments", "2"]);
    report(&[&plain, &halves]);
    for run in [&plain, &halves] {
        assert!(run.join("report.html").exists());
    }

    let path = folder.path().to_str().expect("UTF-8");
    let output = rekindle(&["runs", path, "--json"]).success();
    let document: Value = serde_json::from_slice(&output.get_output().stdout).expect("JSON");
    let runs = document["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 2, "{document}");
    for run in runs {
        let folder = Path::new(run["path"].as_str().expect("a path"));
        let record = fs::read_to_string(folder.join("run.json")).expect("written");
        let record: Value = serde_json::from_str(&record).expect("JSON");
        assert_eq!(run["state"], "finished");
        assert_eq!(run["config"], record["name"]);
        assert_eq!(run["last_loss"], record["last_loss"]);
        for (key, value) in run["ran"].as_object().expect("what ran") {
            assert_eq!(*value, record[key], "{key}");
        }
    }
    let output = rekindle(&["runs", path]).success();
    let text = String::from_utf8_lossy(&output.get_output().stdout).into_owned();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    rekindle(&["runs", plain.to_str().expect("UTF-8")]).code(2);
}

/// A page, a trace of every action, or neither: by the name's end.
#[test]
fn a_name_that_ends_in_json_gets_a_trace_of_every_action() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    train(&run, &["--segments", "2"]);
    let trace = folder.path().join("trace.json");
    let path = |path: &Path| path.display().to_string();
    let (one, file) = (path(&run), path(&trace));
    rekindle(&["report", &one, "-o", &file]).success();
    rekindle(&["report", &one, &one, "-o", &file]).code(2);
    rekindle(&["report", &one, "-o", "no/such/folder/page.html"]).code(5);
    let page = folder.path().join("page.pdf");
    let refused = rekindle(&["report", &one, "-o", &path(&page)]).code(2);
    let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
    assert!(said.contains(".html") && !page.exists(), "{said}");
    let read = |path: &Path| -> Value {
        serde_json::from_str(&fs::read_to_string(path).expect("written")).expect("JSON")
    };
    let (trace, record) = (read(&trace), read(&run.join("run.json")));
    let actions = record["timeline"]["actions"].as_array().expect("actions");
    let events = trace["traceEvents"].as_array().expect("events");
    let complete: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    assert_eq!(complete.len(), actions.len());
    for (event, action) in complete.into_iter().zip(actions) {
        let seconds = |value: &Value| value.as_f64().expect("a number");
        let duration = seconds(&event["dur"]) * 1e-6 - seconds(&action["duration_s"]);
        assert!(duration.abs() < 1e-9, "{event}");
        let held = &event["args"]["measured_peak_bytes"];
        assert_eq!(held, &action["measured_peak_bytes"]);
    }
}

#[test]
fn a_run_without_a_timeline_has_a_page_all_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    train(&run, &[]);
    let path = run.join("run.json");
    let mut record: Value =
        serde_json::from_slice(&fs::read(&path).expect("written")).expect("JSON");
    record["timeline"] = Value::Null;
    record["interrupted"] = Value::Bool(true);
    fs::write(&path, record.to_string()).expect("written");
    let page = report(&[&run]);
    assert!(page.contains("no timeline: this run ended before its fourth step"));
    assert!(page.contains("This run is not finished"));
}

#[test]
fn what_is_no_run_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let refused = |code: i32, words: &str| {
        let assert = rekindle(&["report", path]).code(code);
        let error = String::from_utf8_lossy(&assert.get_output().stderr).replace("\n  | ", " ");
        assert!(error.contains(words), "{error}");
    };
    refused(2, "holds no record of a run");
    let record = folder.path().join("run.json");
    fs::write(&record, "{").expect("written");
    refused(2, "not a run's record");
    fs::remove_file(&record).expect("removed");
    fs::create_dir(&record).expect("made");
    refused(5, "cannot be read");
    rekindle(&["report", "no/such/folder"]).code(5);
    rekindle(&["report"]).code(2);
}

/// The first number after a word in a text.
#[cfg(unix)]
fn number_after(text: &str, word: &str) -> Option<usize> {
    let (_, rest) = text.split_once(word)?;
    let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[cfg(unix)]
#[test]
fn a_watched_page_is_written_again_with_each_step_and_reloads_until_the_run_ends() {
    use crate::{signal::Running, support};

    const REFRESH: &str = "http-equiv=\"refresh\"";
    const LOOKS: usize = 600;
    let folder = support::folder(include_str!("../../configs/parity/mlp.toml"));
    let train = "train run.toml --device cpu --steps 100000000 -o run";
    let train: Vec<&str> = train.split(' ').collect();
    let mut run = Running::start(&mut support::program(folder.path(), &train));
    run.read_to(|line| line.starts_with("step "));
    let watch = ["report", "run", "--watch"];
    // One ends with the run, the other when it is told to.
    let watched = Running::start(&mut support::program(folder.path(), &watch));
    let told = Running::start(&mut support::program(
        folder.path(),
        &["report", "run", "--watch", "-o", "told.html"],
    ));
    let page = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let later = |name: &str, than: usize| {
        for _ in 0..LOOKS {
            let page = page(name);
            match number_after(&page, "Running: step ") {
                Some(step) if step > than => {
                    assert!(page.contains(REFRESH), "{page}");
                    return step;
                }
                _ => std::thread::sleep(std::time::Duration::from_millis(50)),
            }
        }
        panic!("no page after step {than}: {}", page(name));
    };
    let first = later("run/report.html", 0);
    // There is no record before the first snapshot.
    assert!(!folder.path().join("run/run.json").exists());
    later("run/report.html", first);

    later("told.html", 0);
    told.send("-INT", 1);
    assert_eq!(told.end().status.code(), Some(130));
    assert!(!page("told.html").contains(REFRESH));
    run.send("-INT", 1);
    assert_eq!(run.end().status.code(), Some(130));
    assert_eq!(watched.end().status.code(), Some(0));
    let last = page("run/report.html");
    assert!(!last.contains(REFRESH), "{last}");
    assert!(last.contains("This run is not finished"), "{last}");
}
