//! What the commands write against `docs/schema`: no key is missing or unknown, and every value has its type.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    json_schema::{faults, schema},
    support::{self, messages, rekindle},
};

/// Runs a command and takes the one document that it writes.
fn document(code: i32, arguments: &[&str]) -> Value {
    let project = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let output = rekindle(project, &[arguments, &["--json"]].concat());
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    support::document(&output)
}

/// The examples of `docs/json.md`.
fn examples() -> Vec<Value> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples");
    let files = fs::read_dir(folder).expect("a folder");
    let files = files.map(|entry| entry.expect("an entry").path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "json"));
    files
        .map(|path| {
            let text = fs::read_to_string(path).expect("an example");
            serde_json::from_str(&text).expect("an example is JSON")
        })
        .collect()
}

/// A step of two operations: its parameters are given, its gradient stays.
const GRAPH: &str = r#"{
  "tensors": [
    { "bytes": 1000, "given": true, "output": false },
    { "bytes": 1000, "given": false, "output": false },
    { "bytes": 200, "given": false, "output": true }
  ],
  "operations": [
    {
      "inputs": [0], "outputs": [1], "view": false, "in_place": null, "seconds": 0.001, "temp_bytes": 0,
      "repeatable": true, "stage": null, "backward": false
    },
    {
      "inputs": [1], "outputs": [2], "view": false, "in_place": null, "seconds": 0.002, "temp_bytes": 0,
      "repeatable": true, "stage": null, "backward": true
    }
  ],
  "fixed_bytes": 1000
}"#;

/// A document of each format.
fn written(folder: &Path) -> Vec<Value> {
    let config = "configs/parity/mlp.toml";
    let run_dir = folder.join("run");
    let run_dir = run_dir.to_str().expect("a path of text");
    let parent = folder.to_str().expect("a path of text");
    let track = folder.join("track.jsonl");
    let track = track.to_str().expect("a path of text");
    let on_cpu = |code, arguments: &[&str]| {
        let all = [arguments, &["--device", "cpu"]].concat();
        document(code, &all)
    };
    let wrong = folder.join("wrong.toml");
    fs::write(&wrong, "[data]\nmnits = { folder = 'mnist' }\n[model]\n").expect("written");
    let wrong = wrong.to_str().expect("a path of text");
    let graph = folder.join("graph.json");
    fs::write(&graph, GRAPH).expect("written");
    let graph = graph.to_str().expect("a path of text");
    let mut documents = vec![
        document(2, &["estimate", wrong]),
        document(0, &["devices"]),
        on_cpu(0, &["estimate", config, "--segments", "3"]),
        on_cpu(3, &["estimate", config, "--budget", "64KiB"]),
        on_cpu(0, &["plan", config, "--ranks", "2", "--link", "1GB/s,5us"]),
        on_cpu(0, &["profile", config]),
        on_cpu(3, &["plan", config, "--budget", "64KiB"]),
        on_cpu(0, &["plan", config, "--frontier"]),
        document(0, &["plan", "--graph", graph, "--budget", "4kB"]),
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
                "--track",
                track,
            ],
        ),
        command(folder),
        document(0, &["report", run_dir]),
        document(0, &["runs", parent]),
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
                "--confirm",
            ],
        ),
        on_cpu(0, &["verify", config, "--segments", "2", "--steps", "1"]),
    ];
    documents.extend(tracked(track));
    documents
}

/// What a run keeps of how it was started.
fn command(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join("run/command.json")).expect("kept");
    serde_json::from_str(&text).expect("JSON")
}

/// The passes of a track: all lines but the first, which tells their format.
fn tracked(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a track");
    let lines = text.lines().map(serde_json::from_str::<Value>);
    let mut lines = lines.map(|line| line.expect("a line of JSON"));
    let format = lines.next().expect("a first line");
    assert_eq!(format["format"], "rekindle-track/1");
    lines.collect()
}

/// The schema's name of a document.
fn name(document: &Value) -> &str {
    let format = document["format"].as_str().unwrap_or("rekindle-track/1");
    let name = format.split('/').next().expect("a name");
    name.trim_start_matches("rekindle-")
}

#[test]
fn documents_are_as_their_schemas_say() {
    let folder = TempDir::new().expect("a folder");
    let (written, mut wrong) = (written(folder.path()), Vec::new());
    let examples = examples();
    for (by, documents) in [("the program", &written), ("an example", &examples)] {
        for document in documents {
            let name = name(document);
            let schema = schema(name);
            let faults = faults(&schema, &schema, document, true);
            wrong.extend(faults.iter().map(|fault| format!("{name}, by {by}{fault}")));
        }
    }
    let names: BTreeSet<&str> = written.iter().map(name).collect();
    let schemas = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema"));
    for entry in schemas.expect("schemas") {
        let file = entry.expect("an entry").path();
        let schema = file.file_stem().expect("a name").to_string_lossy();
        if schema != "config" && !names.contains(&*schema) {
            wrong.push(format!("nothing here writes {schema}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
