//! `docs/schema/*.json` and the tables of `docs/json.md`, written from the types that the program prints.

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
    commands::{devices, plan_graph, report, verify},
    config::{form::Form, reference::assert_written},
    error_document::{ERROR_FORMAT, ErrorDocument},
    estimate::{ESTIMATE_FORMAT, Estimate},
    infeasible::{INFEASIBLE_FORMAT, Infeasible},
    max::record::{MAX_FORMAT, MaxRecord},
    plan_file::{PLAN_FORMAT, PlanFile},
    started::{COMMAND_FORMAT, Started},
    sweep::record::{SWEEP_FORMAT, SweepRecord},
};

/// Types whose keys are documented as config keys.
const OF_CONFIGS: [&str; 2] = ["ModelSpec", "TrainSettings"];

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

    /// Its keys with their types and meanings, as Markdown.
    fn table(&self) -> String {
        let mut rows = Rows {
            text: "| key | value | meaning |\n|---|---|---|\n".into(),
            shown: OF_CONFIGS
                .map(|name| (&self.schema["$defs"][name], String::new()))
                .to_vec(),
        };
        rows.add(Form::whole(self.schema), "");
        rows.text
    }
}

struct Rows {
    text: String,
    /// Objects whose keys already have rows, and where.
    shown: Vec<(&'static Value, String)>,
}

impl Rows {
    fn add(&mut self, object: Form, path: &str) {
        for (key, schema) in object.keys() {
            let mut path = format!("{path}{key}");
            let value = object.at(schema);
            let mut meaning = object.meaning(schema);
            let mut row = format!("| `{path}` | {} | ", kind(value));
            let mut below = value;
            while let Some(list) = below.forms().into_iter().find(|form| form.is("array")) {
                below = list.items();
                path.push_str("[]");
            }
            let below = below.tables().first().copied();
            let known = below.and_then(|below| {
                let mut shown = self.shown.iter();
                shown.find(|(object, _)| std::ptr::eq(*object, below.0))
            });
            if let Some((_, place)) = known.filter(|(_, place)| !place.is_empty()) {
                meaning.push_str(&format!(" Keys as in `{place}`."));
            }
            row.push_str(&format!("{meaning} |\n"));
            self.text.push_str(&row);
            if let (Some(below), None) = (below, known) {
                self.shown.push((below.0, path.clone()));
                self.add(below, &format!("{path}."));
            }
        }
    }
}

/// The JSON types of a value, or the words that it may be.
fn kind(form: Form) -> String {
    let kinds = form.forms().into_iter().flat_map(|form| {
        let words = form.choices();
        if !words.is_empty() {
            return words.iter().map(|word| format!("`{word:?}`")).collect();
        }
        let kinds: Vec<&Value> = match &form.0["type"] {
            Value::Array(kinds) => kinds.iter().collect(),
            one => vec![one],
        };
        let named = kinds.into_iter().map(|name| match name.as_str() {
            Some("array") => format!("array of {}", plural(kind(form.items()))),
            Some("null") => "`null`".to_owned(),
            Some(name) => name.to_owned(),
            None => "anything".to_owned(),
        });
        named.collect::<Vec<_>>()
    });
    kinds.collect::<Vec<_>>().join(" or ")
}

/// `arrays of integers`.
fn plural(kind: String) -> String {
    match kind.split_once(' ') {
        Some((first, rest)) => format!("{first}s {rest}"),
        None => format!("{kind}s"),
    }
}

/// The page with the table of each section replaced.
fn with_tables(page: &str, documents: &[Document]) -> String {
    let (mut text, mut of, mut inside) = (String::new(), None, false);
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            of = documents.iter().find(|document| document.format == title);
        }
        let is_row = line.starts_with('|');
        if is_row
            && !inside
            && let Some(document) = of
        {
            text.push_str(&document.table());
        }
        inside = is_row && of.is_some();
        if !inside {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[test]
fn schemas_are_written_from_the_types() {
    for document in Document::all() {
        let text = serde_json::to_string_pretty(document.schema).expect("JSON");
        assert_written(&document.file(), &(text + "\n"));
    }
}

#[test]
fn tables_are_written_from_the_schemas() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let page = fs::read_to_string(page).expect("read");
    let documents = Document::all();
    for document in &documents {
        let title = format!("\n## {}\n", document.format);
        assert!(page.contains(&title), "no section {title}");
        let table = document.table();
        for row in table.lines() {
            assert!(row.ends_with('|'), "a row of more than one line: {row}");
            assert!(!row.contains("|  |"), "a key without its meaning: {row}");
            assert!(
                !row.contains("[`"),
                "a link that only rustdoc follows: {row}"
            );
        }
    }
    assert_written("docs/json.md", &with_tables(&page, &documents));
}
