//! `docs/schema/config.json` and `docs/config.md`, written from the schema.

use std::{env, fmt::Write as _, fs, path::Path};

use serde_json::Value;

use super::{
    form::Form,
    schema::{LAYERS, SCHEMA},
};

/// Rewrites the two files where this variable is set.
const REWRITE: &str = "REKINDLE_WRITE_DOCS";

const HEAD: &str = "\
# Config

A config is a TOML file: the model, its data, how it is trained and how it is run. `rekindle init` writes one to start from;
[`configs/`](../configs) has examples. Arguments replace what a config says.

[`schema/config.json`](schema/config.json) is its JSON Schema. Editors that complete TOML from a schema (Taplo, Even Better TOML)
read its address in the file's first line:

```toml
#:schema ../docs/schema/config.json
```

This page and the schema are written from the program's own types by
`REKINDLE_WRITE_DOCS=1 cargo test --bin rekindle config::reference`.
";

/// The reference, as Markdown.
fn reference() -> String {
    let mut page = HEAD.to_owned();
    let config = Form::config();
    for (key, section) in config.keys() {
        write_heading(
            &mut page,
            2,
            &format!("`[{key}]`"),
            &config.description(section),
        );
        write_tables(&mut page, config.at(section), 3);
    }
    page
}

fn write_heading(page: &mut String, level: usize, title: &str, text: &str) {
    let marks = "#".repeat(level);
    let _ = write!(page, "\n{marks} {title}\n\n{text}\n");
}

/// The keys of a table, or of each `type` of one, and then of the tables that are values of these keys.
fn write_tables(page: &mut String, form: Form, level: usize) {
    let tables = form.tables();
    let Some(first) = tables.first() else {
        return;
    };
    // Keys that all types have come first.
    let in_all = |key: &str, schema: &Value| {
        let others = tables[1..].iter().flat_map(|table| table.keys());
        tables.len() > 1
            && others.filter(|other| *other == (key, schema)).count() == tables.len() - 1
    };
    let (common, _): (Vec<_>, Vec<_>) = first.keys().partition(|(key, schema)| in_all(key, schema));
    if !common.is_empty() {
        page.push_str("\nKeys of all of them:\n");
        write_keys(page, *first, &common);
    }
    for table in &tables {
        if tables.len() > 1 {
            let title = match table.tag() {
                Some(tag) => format!("`type = \"{tag}\"`"),
                None => "Without a `type`".to_owned(),
            };
            write_heading(page, level, &title, &table.description(table.0));
        }
        let own: Vec<_> = table.keys().filter(|key| !common.contains(key)).collect();
        write_keys(page, *table, &own);
    }
    for table in &tables {
        for (key, schema) in table.keys() {
            write_value(page, *table, schema, level, key);
        }
    }
}

/// What a key's value may be, where that is a table or a list of tables.
fn write_value(page: &mut String, of: Form, schema: &'static Value, level: usize, key: &str) {
    let form = of.at(schema);
    let list = form.forms().into_iter().find(|form| form.is("array"));
    let form = list.map_or(form, Form::items);
    // Layers inside layers have the same keys.
    let again = key == LAYERS && page.contains("\n### `layers`\n");
    if !form.tables().is_empty() && !again {
        let text = match list {
            Some(_) => form.description(form.0),
            None => of.description(schema),
        };
        write_heading(page, level, &format!("`{key}`"), &text);
        write_tables(page, form, level + 1);
    }
}

fn write_keys(page: &mut String, table: Form, keys: &[(&str, &'static Value)]) {
    let keys = keys.iter().filter(|(_, schema)| schema["const"].is_null());
    let mut head = "\n| key | value | default | meaning |\n|---|---|---|---|\n";
    for (key, schema) in keys {
        page.push_str(std::mem::take(&mut head));
        let default = match (&schema["x-default"], &schema["default"]) {
            (Value::String(words), _) => words.clone(),
            (_, Value::Null) if table.required().any(|name| name == *key) => "**required**".into(),
            (_, Value::Null) => "not set".into(),
            (_, default) => format!("`{}`", short(default)),
        };
        let meaning = table.meaning(schema);
        let values = values(table.at(schema));
        let _ = writeln!(page, "| `{key}` | {values} | {default} | {meaning} |");
    }
}

/// A default in TOML. For a table it is its short form, the name alone.
fn short(default: &Value) -> String {
    match default["type"].as_str() {
        Some(name) => format!("{name:?}"),
        None => default.to_string().replace(',', ", "),
    }
}

/// Which values a key takes.
fn values(form: Form) -> String {
    let table = !form.tables().is_empty();
    let forms = form
        .forms()
        .into_iter()
        .map(|form| match form.word("type") {
            Some(number @ ("integer" | "number")) => format!("{number}{}", range(form)),
            Some("boolean") => "`true`, `false`".to_owned(),
            Some("object") => "table".to_owned(),
            Some("array") => {
                let of = values(form.items());
                match form.bound("maxItems") {
                    Some(length) => format!("list of {length} ({of})"),
                    None => format!("list ({of})"),
                }
            }
            Some("string") if table => "name".to_owned(),
            _ => match (&form.choices()[..], form.word("format")) {
                ([], None) => "text".to_owned(),
                ([], Some(format)) => format!("text ({format})"),
                (words, _) => {
                    let words: Vec<String> =
                        words.iter().map(|word| format!("`{word:?}`")).collect();
                    words.join(", ")
                }
            },
        });
    let mut all: Vec<String> = forms.collect();
    all.dedup();
    let words = !form.0["oneOf"].is_null();
    all.join(if words { ", " } else { " or " })
}

fn range(form: Form) -> String {
    let bounds = [
        ("minimum", ">="),
        ("exclusiveMinimum", ">"),
        ("maximum", "<="),
        ("exclusiveMaximum", "<"),
    ];
    let bounds = bounds.into_iter().filter_map(|(key, sign)| {
        let bound = form.bound(key)?;
        Some(format!("{sign} {bound}"))
    });
    match &bounds.collect::<Vec<_>>()[..] {
        [] => String::new(),
        bounds => format!(" {}", bounds.join(", ")),
    }
}

/// Compares a file with what it should be, or rewrites it.
pub fn assert_written(path: &str, wanted: &str) {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path);
    if env::var_os(REWRITE).is_some() {
        fs::write(&path, wanted).expect("written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == wanted,
        "{} is stale: `{REWRITE}=1 cargo test --bin rekindle` rewrites it",
        path.display()
    );
}

#[test]
fn the_schema_is_written_from_the_types() {
    let schema = serde_json::to_string_pretty(&*SCHEMA).expect("JSON");
    assert_written("docs/schema/config.json", &(schema + "\n"));
}

#[test]
fn the_reference_is_written_from_the_schema() {
    let page = reference();
    assert!(!page.contains("[`Self"), "a link that only rustdoc follows");
    assert!(!page.contains("|  |"), "a key without its meaning: {page}");
    let rows = page.lines().filter(|line| line.starts_with('|'));
    for row in rows {
        assert!(row.ends_with('|'), "a row of more than one line: {row}");
    }
    assert_written("docs/config.md", &page);
}
