//! `docs/schema/config.json` and `docs/config.md`, written from the schema.

use std::{env, fmt::Write as _, fs, path::Path};

use serde_json::Value;

use super::schema::{LAYERS, SCHEMA, resolved};

/// Rewrites the two files where this variable is set.
const REWRITE: &str = "REKINDLE_WRITE_DOCS";

const HEAD: &str = "\
# Config

A config is a TOML file: the model, its data, how it is trained and how it is run. `rekindle init` writes one to start from;
[`configs/`](../configs) has one for each story. Arguments replace what a config says.

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
    for (key, section) in properties(&SCHEMA) {
        write_heading(&mut page, 2, &format!("`[{key}]`"), description(section));
        write_table(&mut page, section, 3);
    }
    page
}

fn write_heading(page: &mut String, level: usize, title: &str, text: String) {
    let marks = "#".repeat(level);
    let _ = write!(page, "\n{marks} {title}\n\n{text}\n");
}

/// The keys of a table, or of each `type` of one, and then of the tables that are values of these keys.
fn write_table(page: &mut String, schema: &Value, level: usize) {
    let tables = tables(schema);
    if let [only] = tables[..] {
        write_keys(page, only, &[]);
        for (key, value) in properties(only) {
            write_values(page, value, level, key);
        }
        return;
    }
    let Some(&first) = tables.first() else {
        return;
    };
    // Keys of all types stand before them.
    let common: Vec<&str> = properties(first)
        .map(|(key, _)| key)
        .filter(|key| {
            tables
                .iter()
                .all(|table| first["properties"][key] == table["properties"][key])
        })
        .collect();
    let mut all = first.clone();
    if let Some(keys) = all["properties"].as_object_mut() {
        keys.retain(|key, _| common.contains(&key.as_str()));
    }
    if !common.is_empty() {
        page.push_str("\nKeys of all of them:\n");
        write_keys(page, &all, &[]);
    }
    for table in &tables {
        let title = match table["properties"]["type"]["const"].as_str() {
            Some(tag) => format!("`type = \"{tag}\"`"),
            None => "Without a `type`".to_owned(),
        };
        write_heading(page, level, &title, description(table));
        write_keys(page, table, &common);
    }
    for table in tables {
        for (key, value) in properties(table) {
            write_values(page, value, level, key);
        }
    }
}

/// What a key's value may be, where that is a table or a list of tables.
fn write_values(page: &mut String, value: &Value, level: usize, key: &str) {
    let list = forms(value)
        .into_iter()
        .find(|form| form["type"] == "array");
    let value = match list {
        Some(list) => resolved(&SCHEMA, &list["items"]),
        None => value,
    };
    // Layers inside layers are the same again.
    let again = key == LAYERS && page.contains("\n### `layers`\n");
    if tables(value).is_empty() || again {
        return;
    }
    write_heading(page, level, &format!("`{key}`"), description(value));
    write_table(page, value, level + 1);
}

fn write_keys(page: &mut String, table: &Value, without: &[&str]) {
    let keys: Vec<_> = properties(table)
        .filter(|(key, value)| !without.contains(key) && value["const"].is_null())
        .collect();
    if keys.is_empty() {
        return;
    }
    page.push_str("\n| key | value | default | meaning |\n|---|---|---|---|\n");
    let required = table["required"].as_array();
    for (key, value) in keys {
        let required = required.is_some_and(|required| required.iter().any(|name| name == key));
        let default = match (&value["x-default"], &value["default"]) {
            (Value::String(words), _) => words.clone(),
            (_, Value::Null) if required => "**required**".to_owned(),
            (_, Value::Null) => "not set".to_owned(),
            (_, default) => format!("`{}`", short(default)),
        };
        let mut meaning = description(value);
        for form in forms(value) {
            if let (Some(word), Some(text)) = (form["const"].as_str(), form["description"].as_str())
            {
                let text = text.trim_end_matches('.');
                let _ = write!(meaning, " `{word}`: {text}.");
            }
        }
        let _ = writeln!(
            page,
            "| `{key}` | {} | {default} | {meaning} |",
            words(value)
        );
    }
}

/// A default as TOML has it. That of a table is the name that it has alone.
fn short(default: &Value) -> String {
    match default["type"].as_str() {
        Some(name) => format!("{name:?}"),
        None => default.to_string().replace(',', ", "),
    }
}

/// Which values a key takes.
fn words(schema: &Value) -> String {
    let mut all = Vec::new();
    let forms = forms(schema);
    let table = forms.iter().any(|form| form["type"] == "object");
    for form in forms {
        let words = match form["type"].as_str() {
            Some("integer") => format!("integer{}", range(form)),
            Some("number") => format!("number{}", range(form)),
            Some("boolean") => "`true`, `false`".to_owned(),
            Some("object") => "table".to_owned(),
            Some("array") => {
                let of = words(&form["items"]);
                match form["maxItems"].as_u64() {
                    Some(length) => format!("list of {length} ({of})"),
                    None => format!("list ({of})"),
                }
            }
            Some("string") if table => "name".to_owned(),
            _ => {
                let named = form["enum"].as_array().into_iter().flatten();
                let named = named.chain([&form["const"]]).filter_map(Value::as_str);
                let named: Vec<String> = named.map(|word| format!("`\"{word}\"`")).collect();
                match (&named[..], form["format"].as_str()) {
                    ([], None) => "text".to_owned(),
                    ([], Some(format)) => format!("text ({format})"),
                    _ => named.join(", "),
                }
            }
        };
        if !all.contains(&words) {
            all.push(words);
        }
    }
    let separator = match resolved(&SCHEMA, schema)["oneOf"].is_array() {
        true => ", ",
        false => " or ",
    };
    all.join(separator)
}

fn range(schema: &Value) -> String {
    let bounds = [
        ("minimum", ">="),
        ("exclusiveMinimum", ">"),
        ("maximum", "<="),
        ("exclusiveMaximum", "<"),
    ];
    let bounds = bounds.into_iter().filter(|(key, _)| !schema[key].is_null());
    let bounds: Vec<String> = bounds
        .map(|(key, sign)| format!("{sign} {}", schema[key]))
        .collect();
    match &bounds[..] {
        [] => String::new(),
        bounds => format!(" {}", bounds.join(", ")),
    }
}

fn description(schema: &Value) -> String {
    let own = schema["description"].as_str();
    let text = own.or_else(|| resolved(&SCHEMA, schema)["description"].as_str());
    text.unwrap_or_default().replace('\n', " ")
}

fn properties(schema: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let schema = resolved(&SCHEMA, schema);
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.map(|(key, value)| (key.as_str(), value))
}

/// The forms that are no choice between others.
fn forms(schema: &Value) -> Vec<&Value> {
    let schema = resolved(&SCHEMA, schema);
    match schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        None => vec![schema],
        Some(choice) => choice.iter().flat_map(forms).collect(),
    }
}

fn tables(schema: &Value) -> Vec<&Value> {
    let forms = forms(schema).into_iter();
    forms.filter(|form| form["type"] == "object").collect()
}

/// Compares a file with what it should be, or rewrites it.
fn assert_written(path: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if env::var_os(REWRITE).is_some() {
        fs::write(&path, wanted).expect("written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == wanted,
        "{} is stale: `{REWRITE}=1 cargo test --bin rekindle config::reference` rewrites it",
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
    assert_written("docs/config.md", &page);
}
