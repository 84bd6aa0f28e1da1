//! `docs/schema/*.json`, written from the types that the program prints.

use std::fs;

use rekindle_plan::{Chain, chain::FORMAT as CHAIN_FORMAT};
use rekindle_train::{
    record::{RUN_FORMAT, RunRecord},
    session::{FRONTIER_FORMAT, Frontier},
    tracker::{TRACK_FORMAT, TrackedPass},
};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Value, json};

use crate::{
    commands::{devices, plan_graph, report, runs, verify},
    config::reference::assert_written,
    error_document::{ERROR_FORMAT, ErrorDocument},
    estimate::{ESTIMATE_FORMAT, Estimate},
    infeasible::{INFEASIBLE_FORMAT, Infeasible},
    max::{MAX_FORMAT, MaxRecord},
    plan_file::{PLAN_FORMAT, PlanFile},
    started::{COMMAND_FORMAT, Started},
    sweep::record::{SWEEP_FORMAT, SweepRecord},
};

/// A document that the program writes.
struct Document {
    format: &'static str,
    schema: &'static Value,
}

impl Document {
    fn new<T: JsonSchema>(format: &'static str, settings: SchemaSettings) -> Self {
        let schema = settings.into_generator().into_root_schema_for::<T>();
        let mut schema = schema.to_value();
        if let Some(tag) = schema["properties"].get_mut("format") {
            *tag = json!({ "const": format, "description": "Name and version of the format." });
        }
        let schema = Box::leak(Box::new(schema));
        Self { format, schema }
    }

    fn written<T: JsonSchema>(format: &'static str) -> Self {
        Self::new::<T>(format, SchemaSettings::draft2020_12().for_serialize())
    }

    /// All of them.
    fn all() -> Vec<Self> {
        vec![
            Self::written::<Estimate>(ESTIMATE_FORMAT),
            // Users may also write this file, so keys that may be omitted are not required.
            Self::new::<Chain>(CHAIN_FORMAT, SchemaSettings::draft2020_12()),
            Self::written::<PlanFile>(PLAN_FORMAT),
            Self::written::<plan_graph::Program>(plan_graph::PROGRAM_FORMAT),
            Self::written::<Infeasible>(INFEASIBLE_FORMAT),
            Self::written::<ErrorDocument>(ERROR_FORMAT),
            Self::written::<Frontier>(FRONTIER_FORMAT),
            Self::written::<RunRecord>(RUN_FORMAT),
            Self::written::<TrackedPass>(TRACK_FORMAT),
            Self::written::<verify::VerifyRecord>(verify::VERIFY_FORMAT),
            Self::written::<Started>(COMMAND_FORMAT),
            Self::written::<report::Document>(report::REPORT_FORMAT),
            Self::written::<runs::Document>(runs::RUNS_FORMAT),
            Self::written::<SweepRecord>(SWEEP_FORMAT),
            Self::written::<MaxRecord>(MAX_FORMAT),
            Self::written::<devices::DeviceList>(devices::DEVICES_FORMAT),
        ]
    }

    /// `rekindle-run/2` is `run.json`.
    fn file(&self) -> String {
        let name = self.format.trim_start_matches("rekindle-");
        let name = name.split('/').next().unwrap_or_default();
        format!("docs/schema/{name}.json")
    }
}

#[test]
fn schemas_are_written_from_the_types() {
    for document in Document::all() {
        let text = serde_json::to_string_pretty(document.schema).expect("JSON");
        assert_written(&document.file(), &(text + "\n"));
    }
}

#[test]
fn every_document_has_a_section_and_every_key_a_meaning() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let page = fs::read_to_string(page).expect("read");
    for Document { format, schema } in Document::all() {
        assert!(page.contains(&format!("\n## {format}\n")), "{format}");
        for object in schema["$defs"].as_object().into_iter().flatten() {
            meanings(format, object.1);
        }
        meanings(format, schema);
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
