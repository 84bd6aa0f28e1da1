//! `docs/schema/config.json` against configs: a validator of its own reads the schema by the rules of JSON Schema alone.

use std::{fs, path::Path};

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Keywords that describe and do not restrict.
const ANNOTATIONS: [&str; 8] = [
    "$schema",
    "$defs",
    "title",
    "description",
    "default",
    "format",
    "x-default",
    "x-expected",
];

fn schema() -> Value {
    let path =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/schema/config.json");
    serde_json::from_slice(&fs::read(path).expect("read")).expect("JSON")
}

fn valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let rules = schema.as_object().expect("a schema is an object");
    let number = |bound: &Value| bound.as_f64().expect("a number");
    rules.iter().all(|(keyword, rule)| match keyword.as_str() {
        "$ref" => {
            let name = rule.as_str().and_then(|name| name.strip_prefix("#/$defs/"));
            valid(root, &root["$defs"][name.expect("a definition")], value)
        }
        "type" => match rule.as_str().expect("one type") {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            other => panic!("type {other}"),
        },
        "const" => value == rule,
        "enum" => rule.as_array().expect("a list").contains(value),
        "anyOf" => matching(root, rule, value) > 0,
        "oneOf" => matching(root, rule, value) == 1,
        "minimum" => value.as_f64().is_none_or(|value| value >= number(rule)),
        "maximum" => value.as_f64().is_none_or(|value| value <= number(rule)),
        "exclusiveMinimum" => value.as_f64().is_none_or(|value| value > number(rule)),
        "exclusiveMaximum" => value.as_f64().is_none_or(|value| value < number(rule)),
        "minItems" => value
            .as_array()
            .is_none_or(|list| list.len() as f64 >= number(rule)),
        "maxItems" => value
            .as_array()
            .is_none_or(|list| list.len() as f64 <= number(rule)),
        "items" => {
            let mut items = value.as_array().into_iter().flatten();
            items.all(|item| valid(root, rule, item))
        }
        "required" => {
            let mut keys = rule
                .as_array()
                .expect("a list")
                .iter()
                .filter_map(Value::as_str);
            value
                .as_object()
                .is_none_or(|table| keys.all(|key| table.contains_key(key)))
        }
        "properties" => {
            let mut entries = value.as_object().into_iter().flatten();
            entries.all(|(key, value)| rule.get(key).is_none_or(|rule| valid(root, rule, value)))
        }
        "additionalProperties" => {
            assert_eq!(*rule, json!(false));
            let mut keys = value.as_object().into_iter().flatten();
            keys.all(|(key, _)| schema["properties"].get(key).is_some())
        }
        annotation => {
            assert!(ANNOTATIONS.contains(&annotation), "keyword {annotation}");
            true
        }
    })
}

fn matching(root: &Value, schemas: &Value, value: &Value) -> usize {
    let schemas = schemas.as_array().expect("a list").iter();
    schemas.filter(|schema| valid(root, schema, value)).count()
}

fn config(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("read");
    toml::from_str(&text).expect("TOML")
}

#[test]
fn every_config_of_the_repository_is_valid() {
    let schema = schema();
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("configs");
    let mut seen = 0;
    for folder in [root.clone(), root.join("parity")] {
        for entry in fs::read_dir(folder).expect("configs") {
            let path = entry.expect("an entry").path();
            if path
                .extension()
                .is_some_and(|extension| extension == "toml")
            {
                assert!(
                    valid(&schema, &schema, &config(&path)),
                    "{}",
                    path.display()
                );
                seen += 1;
            }
        }
    }
    assert!(seen >= 9, "{seen} configs");
}

#[test]
fn every_config_that_init_writes_is_valid() {
    let schema = schema();
    let folder = TempDir::new().expect("a folder");
    for story in ["synthetic", "text", "mnist", "cifar10"] {
        let path = folder.path().join(format!("{story}.toml"));
        let mut init = Command::cargo_bin("rekindle").expect("built");
        init.args(["init", story, "-o"])
            .arg(&path)
            .assert()
            .success();
        assert!(valid(&schema, &schema, &config(&path)), "{story}");
    }
}

/// The schema refuses what the program refuses, and takes what it takes.
#[test]
fn one_change_makes_a_config_invalid() {
    let schema = schema();
    let right = json!({
        "data": { "type": "synthetic", "shape": [1, 8, 8], "target": { "classes": 3 } },
        "model": { "layers": [
            { "type": "conv2d", "out": 2, "kernel": [3, 1], "padding": "same" },
            { "repeat": 2, "layers": ["relu", { "repeat": 2, "type": "dropout", "p": 0 }] },
            "flatten",
            { "type": "linear", "out": 3 },
        ] },
        "train": { "optimizer": "adamw", "learning_rate": 1e-3, "clip": { "type": "norm", "max": 1 } },
        "run": { "budget": "1GiB", "count": "in-use", "snapshot_every": 5 },
    });
    assert!(valid(&schema, &schema, &right));
    for (place, wrong) in [
        ("/data/type", json!("sythetic")),
        ("/data/shape/0", json!(0)),
        ("/data/target", json!({ "classes": 3, "values": 1 })),
        (
            "/data/target",
            json!({ "type": "regression", "classes": 3 }),
        ),
        ("/model/layers", json!([])),
        ("/model/layers/0/kernel", json!([3, 1, 1])),
        ("/model/layers/0/padding", json!("full")),
        ("/model/layers/0", json!({ "type": "linear" })),
        ("/model/layers/1/repeat", json!(0)),
        ("/model/layers/1/layers/1/p", json!(1.0)),
        (
            "/model/layers/1/layers/1",
            json!({ "type": "dropout", "q": 0.1 }),
        ),
        ("/model/layers/2", json!("linear")),
        ("/train/optimizer", json!("addam")),
        ("/train/learning_rate", json!(0)),
        ("/train/clip/max", json!("1")),
        ("/run/count", json!("used")),
        ("/run/snapshot_every", json!(0)),
        ("/run", json!({ "bugdet": "1GiB" })),
    ] {
        let mut changed = right.clone();
        *changed.pointer_mut(place).expect("a place") = wrong.clone();
        assert!(!valid(&schema, &schema, &changed), "{place}: {wrong}");
    }
}
