//! `docs/schema/config.json` against configs.

use std::{fs, path::Path};

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::json_schema::{faults, schema};

/// What the schema says against a config.
fn wrong(config: &Value) -> String {
    let schema = schema("config");
    faults(&schema, &schema, config, false).join("\n")
}

fn config(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("read");
    toml::from_str(&text).expect("TOML")
}

#[test]
fn every_config_of_the_repository_is_valid() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("configs");
    let mut seen = 0;
    for folder in [root.clone(), root.join("parity")] {
        for entry in fs::read_dir(folder).expect("configs") {
            let path = entry.expect("an entry").path();
            if path
                .extension()
                .is_some_and(|extension| extension == "toml")
            {
                assert_eq!(wrong(&config(&path)), "", "{}", path.display());
                seen += 1;
            }
        }
    }
    assert!(seen >= 9, "{seen} configs");
}

#[test]
fn every_config_that_init_writes_is_valid() {
    let folder = TempDir::new().expect("a folder");
    for story in ["synthetic", "text", "mnist", "cifar10"] {
        let path = folder.path().join(format!("{story}.toml"));
        let mut init = Command::cargo_bin("rekindle").expect("built");
        init.args(["init", story, "-o"])
            .arg(&path)
            .assert()
            .success();
        assert_eq!(wrong(&config(&path)), "", "{story}");
    }
}

/// The schema refuses keys, words and types that the program refuses. Ranges are the program's.
#[test]
fn one_change_makes_a_config_invalid() {
    let right = json!({
        "data": { "synthetic": { "shape": [1, 8, 8], "target": { "classes": 3 } } },
        "model": { "layers": [
            { "conv2d": { "out": 2, "kernel": [3, 1], "padding": "same" } },
            { "repeat": { "times": 2, "layers": ["relu", { "dropout": { "p": 0 } }, "layer_norm"] } },
            "flatten",
            { "linear": { "out": 3 } },
        ] },
        "train": { "optimizer": "adamw", "learning_rate": 1e-3, "clip_norm": 1 },
        "run": { "budget": "1GiB", "count": "in-use", "snapshot_every": 5 },
    });
    assert_eq!(wrong(&right), "");
    for (place, wrong) in [
        (
            "/data",
            json!({ "sythetic": { "shape": [1], "target": { "classes": 3 } } }),
        ),
        ("/data/synthetic/shape/0", json!(-1)),
        (
            "/data/synthetic/target",
            json!({ "classes": 3, "values": 1 }),
        ),
        ("/data/synthetic/target", json!({ "classs": 3 })),
        ("/model/layers", json!("relu")),
        ("/model/layers/0/conv2d/kernel", json!([3, 1, 1])),
        ("/model/layers/0/conv2d/padding", json!("full")),
        ("/model/layers/0", json!({ "linear": {} })),
        ("/model/layers/1/repeat/times", json!("2")),
        (
            "/model/layers/1/repeat/layers/1",
            json!({ "dropout": { "q": 0.1 } }),
        ),
        ("/model/layers/2", json!("linear")),
        ("/model/layers/2", json!({ "type": "linear", "out": 3 })),
        ("/train/optimizer", json!("addam")),
        ("/train/learning_rate", json!("fast")),
        ("/train/clip_norm", json!("1")),
        ("/run/count", json!("used")),
        ("/run/snapshot_every", json!(0.5)),
        ("/run", json!({ "bugdet": "1GiB" })),
    ] {
        let mut changed = right.clone();
        *changed.pointer_mut(place).expect("a place") = wrong.clone();
        assert_ne!(self::wrong(&changed), "", "{place}: {wrong}");
    }
}
