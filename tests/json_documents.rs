//! `docs/json.md` against what the commands write: every key is documented, and every documented key is written.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use assert_cmd::Command;
use serde_json::Value;
use tempfile::TempDir;

/// What the document says of one format.
#[derive(Default)]
struct Documented {
    keys: BTreeSet<String>,
    /// Keys below these may be anything.
    open: BTreeSet<String>,
    /// Keys that no machine without a GPU writes, or no run whose memory stays the same.
    elsewhere: BTreeSet<String>,
    examples: Vec<Value>,
}

/// Runs a command and takes the one document that it writes.
fn document(folder: &Path, code: i32, arguments: &[&str]) -> Value {
    let output = Command::cargo_bin("rekindle")
        .expect("built")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .env("REKINDLE_CACHE", folder.join("cache"))
        .args(arguments)
        .arg("--json")
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// The paths of all keys. A layer inside a layer has the keys of a layer.
fn keys(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                let path = if at.is_empty() {
                    key.clone()
                } else {
                    format!("{at}.{key}")
                };
                let path = path.replace("layers[].layers[]", "layers[]");
                keys(member, &path, found);
                found.insert(path);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                keys(element, &format!("{at}[]"), found);
            }
        }
        _ => {}
    }
}

/// The sections of the document by format.
fn documented() -> BTreeMap<String, Documented> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/json.md");
    let text = fs::read_to_string(path).expect("docs/json.md");
    let mut sections: BTreeMap<String, Documented> = BTreeMap::new();
    let (mut format, mut example) = (String::new(), None::<String>);
    for line in text.lines() {
        let section = sections.entry(format.clone()).or_default();
        if let Some(so_far) = &mut example {
            if line == "```" {
                section
                    .examples
                    .push(serde_json::from_str(so_far).expect("an example is JSON"));
                example = None;
            } else {
                so_far.push_str(line);
            }
        } else if line == "```json" {
            example = Some(String::new());
        } else if let Some(title) = line.strip_prefix("## ") {
            format = title.to_owned();
        } else if let Some(row) = line.strip_prefix("| `") {
            let (key, meaning) = row.split_once('`').expect("a key in backticks");
            if let Some(open) = key.strip_suffix(".*") {
                section.open.insert(format!("{open}."));
            } else if meaning.contains("*GPU*") || meaning.contains("*leak*") {
                section.elsewhere.insert(key.to_owned());
            }
            section.keys.insert(key.to_owned());
        }
    }
    sections.retain(|format, _| format.starts_with("rekindle-"));
    sections
}

/// At least one document of each format, and of each of its forms.
fn written(folder: &Path) -> Vec<Value> {
    let config = "configs/parity/mlp.toml";
    let blocks = "configs/parity/tokens.toml";
    let run_dir = folder.join("run");
    let run_dir = run_dir.to_str().expect("a path of text");
    let track = folder.join("track.jsonl");
    let track = track.to_str().expect("a path of text");
    let on_cpu = |code, arguments: &[&str]| {
        let all = [arguments, &["--device", "cpu"]].concat();
        document(folder, code, &all)
    };
    let plain = on_cpu(0, &["estimate", blocks]);
    // What kernels keep differs from machine to machine, so the budget follows from what is needed.
    let needs = &plain["plain"]["peak"]["total_bytes"];
    let below = format!("{}B", needs.as_u64().expect("bytes") - 32 * 1024);
    let wrong = folder.join("wrong.toml");
    fs::write(&wrong, "[data]\ntpye = 'mnist'\n[model]\n").expect("written");
    let wrong = wrong.to_str().expect("a path of text");
    let mut documents = vec![
        document(folder, 2, &["estimate", wrong]),
        document(folder, 0, &["devices"]),
        plain,
        on_cpu(0, &["estimate", blocks, "--segments", "3"]),
        on_cpu(0, &["estimate", blocks, "--budget", &below]),
        on_cpu(3, &["estimate", blocks, "--budget", "1B"]),
        on_cpu(0, &["profile", config]),
        // Stages with another way to record them.
        on_cpu(0, &["profile", blocks, "--executor", "modules"]),
        on_cpu(0, &["plan", config, "--segments", "3"]),
        on_cpu(3, &["plan", config, "--budget", "64KiB"]),
        on_cpu(0, &["plan", config, "--frontier"]),
        // One of single operations.
        on_cpu(
            0,
            &["plan", "configs/deep-linear.toml", "--budget", "60MiB"],
        ),
        on_cpu(
            0,
            &[
                "train",
                config,
                "--segments",
                "3",
                "--steps",
                "5",
                "-o",
                run_dir,
            ],
        ),
        command(folder),
        document(folder, 0, &["report", run_dir]),
        on_cpu(0, &["sweep", config, "--segments", "2", "--steps", "1"]),
        on_cpu(
            0,
            &[
                "max",
                config,
                "--vary",
                "batch",
                "--budget",
                "16MiB",
                "--counted",
                "--confirm",
            ],
        ),
        on_cpu(0, &["verify", config, "--segments", "2", "--steps", "1"]),
        on_cpu(0, &["train", config, "--steps", "2", "--track", track]),
    ];
    documents.extend(tracked(track));
    documents
}

/// What a run keeps of how it was started.
fn command(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join("run/command.json")).expect("kept");
    serde_json::from_str(&text).expect("JSON")
}

/// The moments of a track, each with its file's format.
fn tracked(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a track");
    let mut lines = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
    let format = lines.next().expect("a first line")["format"].clone();
    lines
        .map(|mut moment| {
            moment["format"] = format.clone();
            moment
        })
        .collect()
}

#[test]
fn documents_are_as_documented() {
    let folder = TempDir::new().expect("a folder");
    let sections = documented();
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for document in written(folder.path()) {
        let format = document["format"].as_str().expect("a format").to_owned();
        keys(&document, "", seen.entry(format).or_default());
    }
    let mut wrong = Vec::new();
    for (format, found) in &seen {
        let Some(section) = sections.get(format) else {
            wrong.push(format!("{format} has no section"));
            continue;
        };
        let open = |key: &str| section.open.iter().any(|open| key.starts_with(open));
        let mut shown = BTreeSet::new();
        for example in &section.examples {
            keys(example, "", &mut shown);
        }
        for (by, these) in [("the program", found), ("an example", &shown)] {
            for key in these.difference(&section.keys) {
                if !open(key) {
                    wrong.push(format!(
                        "{format}: `{key}`, which {by} writes, is not documented"
                    ));
                }
            }
        }
        for key in section.keys.difference(found) {
            if !open(key) && !section.elsewhere.contains(key) {
                wrong.push(format!(
                    "{format}: `{key}` is documented, and nothing writes it"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
