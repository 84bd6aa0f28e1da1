//! `docs/schema/*.json`, written from the types that the program prints and reads; what the pages beside them must name.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use rekindle_plan::{Chain, chain::FORMAT as CHAIN_FORMAT};
use rekindle_train::{
    record::{RUN_FORMAT, RunRecord},
    session::{FRONTIER_FORMAT, Frontier, PLAN_FORMAT, PlanFile},
    tracker::{TRACK_FORMAT, TrackedPass},
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Value, json};

use crate::{
    commands::{
        devices,
        estimate::{ESTIMATE_FORMAT, Estimate},
        max::{MAX_FORMAT, MaxRecord},
        plan_graph, report, runs, verify,
    },
    config::ConfigFile,
    failure::{
        InfeasibleDocument,
        document::{ERROR_FORMAT, ErrorDocument},
        infeasible::INFEASIBLE_FORMAT,
    },
    started::{COMMAND_FORMAT, Started},
    sweep::record::{SWEEP_FORMAT, SweepRecord},
};

/// Rewrites the schemas where this variable is set.
const REWRITE: &str = "REKINDLE_WRITE_DOCS";

/// The schema of a document that the program reads or writes, with its format tag.
fn document<T: JsonSchema>(
    format: &'static str,
    settings: SchemaSettings,
) -> (&'static str, Value) {
    let schema = settings.into_generator().into_root_schema_for::<T>();
    let mut schema = schema.to_value();
    if let Some(tag) = schema["properties"].get_mut("format") {
        *tag = json!({ "const": format, "description": "Name and version of the format." });
    }
    (format, schema)
}

fn written<T: JsonSchema>(format: &'static str) -> (&'static str, Value) {
    document::<T>(format, SchemaSettings::draft2020_12().for_serialize())
}

/// All documents.
fn documents() -> [(&'static str, Value); 16] {
    [
        written::<Estimate>(ESTIMATE_FORMAT),
        // Users may also write this file, so keys that may be omitted are not required.
        document::<Chain>(CHAIN_FORMAT, SchemaSettings::draft2020_12()),
        written::<PlanFile>(PLAN_FORMAT),
        written::<plan_graph::Program>(plan_graph::PROGRAM_FORMAT),
        written::<InfeasibleDocument>(INFEASIBLE_FORMAT),
        written::<ErrorDocument>(ERROR_FORMAT),
        written::<Frontier>(FRONTIER_FORMAT),
        written::<RunRecord>(RUN_FORMAT),
        written::<TrackedPass>(TRACK_FORMAT),
        written::<verify::VerifyRecord>(verify::VERIFY_FORMAT),
        written::<Started>(COMMAND_FORMAT),
        written::<report::Document>(report::REPORT_FORMAT),
        written::<runs::Document>(runs::RUNS_FORMAT),
        written::<SweepRecord>(SWEEP_FORMAT),
        written::<MaxRecord>(MAX_FORMAT),
        written::<devices::DeviceList>(devices::DEVICES_FORMAT),
    ]
}

/// Compares a file with what it should be, or rewrites it where [`REWRITE`] is set.
fn assert_written(path: &str, schema: &Value) {
    let path = root().join(path);
    let wanted = serde_json::to_string_pretty(schema).expect("JSON") + "\n";
    if env::var_os(REWRITE).is_some() {
        fs::write(&path, &wanted).expect("written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == wanted,
        "{} is stale: `{REWRITE}=1 cargo test --bin rekindle documents` rewrites it",
        path.display()
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn schemas_are_written_from_the_types() {
    for (format, schema) in documents() {
        // `rekindle-run/3` is `run.json`.
        let name = format.trim_start_matches("rekindle-");
        let name = name.split('/').next().unwrap_or_default();
        assert_written(&format!("docs/schema/{name}.json"), &schema);
    }
    assert_written("docs/schema/config.json", &config_schema());
}

fn config_schema() -> Value {
    schemars::schema_for!(ConfigFile).to_value()
}

/// Collects the keys of a schema's tables, and the words that its texts may be.
fn collect_names<'a>(schema: &'a Value, names: &mut BTreeSet<&'a str>) {
    match schema {
        Value::Object(keys) => {
            if let Some(properties) = schema["properties"].as_object() {
                names.extend(properties.keys().map(String::as_str));
            }
            let words = schema["enum"].as_array().into_iter().flatten();
            names.extend(words.chain([&schema["const"]]).filter_map(Value::as_str));
            keys.values().for_each(|value| collect_names(value, names));
        }
        Value::Array(list) => list.iter().for_each(|value| collect_names(value, names)),
        _ => {}
    }
}

#[test]
fn every_document_has_a_section_and_every_key_a_meaning() {
    let page = fs::read_to_string(root().join("docs/json.md")).expect("read");
    for (format, schema) in documents() {
        assert!(page.contains(&format!("\n## {format}\n")), "{format}");
        for object in schema["$defs"].as_object().into_iter().flatten() {
            meanings(format, object.1);
        }
        meanings(format, &schema);
    }
}

fn meanings(format: &str, object: &Value) {
    for (key, value) in object["properties"].as_object().into_iter().flatten() {
        let meaning = value["description"].as_str();
        assert!(meaning.is_some(), "{format}: `{key}` has no meaning");
        let rustdoc = meaning.is_some_and(|meaning| meaning.contains("[`"));
        assert!(
            !rustdoc,
            "{format}: a link in `{key}` that only rustdoc follows"
        );
    }
}

#[test]
fn every_key_of_a_config_is_described() {
    let page = fs::read_to_string(root().join("docs/config.md")).expect("read");
    let schema = config_schema();
    let mut names = BTreeSet::new();
    collect_names(&schema, &mut names);
    assert!(names.contains("clip_norm") && names.contains("in-backward"));
    // Words between backticks.
    let code = page.split('`').skip(1).step_by(2);
    let word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
    let described: BTreeSet<&str> = code.flat_map(|code| code.split(|c| !word(c))).collect();
    names.retain(|name| !described.contains(name));
    assert!(names.is_empty(), "docs/config.md does not name {names:?}");
}
