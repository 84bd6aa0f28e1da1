//! A validator that reads a schema by the rules of JSON Schema alone.

use std::{fs, path::Path};

use serde_json::Value;

/// Keywords that describe and do not restrict.
const ANNOTATIONS: [&str; 10] = [
    "$schema",
    "$defs",
    "title",
    "description",
    "default",
    "readOnly",
    "format",
    "writeOnly",
    "x-default",
    "x-expected",
];

/// A schema of `docs/schema`.
pub fn schema(name: &str) -> Value {
    let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema"));
    let text = fs::read(docs.join(format!("{name}.json"))).expect("read");
    serde_json::from_slice(&text).expect("JSON")
}

/// What is wrong with a value, first things first; nothing where the schema holds. With `closed`, keys that the schema does
/// not name are wrong everywhere.
pub fn faults(root: &Value, schema: &Value, value: &Value, closed: bool) -> Vec<String> {
    let check = Check { root, closed };
    let mut found = Vec::new();
    check.value(schema, value, "", &mut found);
    found
}

struct Check<'a> {
    root: &'a Value,
    closed: bool,
}

impl Check<'_> {
    fn value(&self, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
        // `true` and `{}` allow anything.
        let Some(rules) = schema.as_object() else {
            return;
        };
        for (keyword, rule) in rules {
            if !self.holds(schema, keyword, rule, value, at, found) {
                found.push(format!(
                    "{at}: `{keyword}` is {rule}, and the value {value}"
                ));
            }
        }
        if self.closed
            && let (Some(keys), Some(table)) = (schema["properties"].as_object(), value.as_object())
        {
            let unknown = table.keys().filter(|key| !keys.contains_key(*key));
            found.extend(unknown.map(|key| format!("{at}: the schema has no `{key}`")));
        }
    }

    /// Whether one rule holds; of what is inside the value, faults are added to `found`.
    fn holds(
        &self,
        schema: &Value,
        keyword: &str,
        rule: &Value,
        value: &Value,
        at: &str,
        found: &mut Vec<String>,
    ) -> bool {
        let bound = || rule.as_f64().expect("a number");
        let number =
            |fits: fn(f64, f64) -> bool| value.as_f64().is_none_or(|value| fits(value, bound()));
        let length = |fits: fn(f64, f64) -> bool| {
            let list = value.as_array();
            list.is_none_or(|list| fits(list.len() as f64, bound()))
        };
        let list = || rule.as_array().expect("a list");
        match keyword {
            "$ref" => {
                let name = rule.as_str().and_then(|name| name.strip_prefix("#/$defs/"));
                self.value(
                    &self.root["$defs"][name.expect("a definition")],
                    value,
                    at,
                    found,
                );
            }
            "type" => return kinds(rule).any(|kind| is(value, kind)),
            "const" => return value == rule,
            "enum" => return list().contains(value),
            "anyOf" => return self.matching(list(), value) > 0,
            "oneOf" => return self.matching(list(), value) == 1,
            "minimum" => return number(|value, least| value >= least),
            "maximum" => return number(|value, most| value <= most),
            "exclusiveMinimum" => return number(|value, below| value > below),
            "exclusiveMaximum" => return number(|value, above| value < above),
            "minItems" => return length(|length, least| length >= least),
            "maxItems" => return length(|length, most| length <= most),
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    self.value(rule, item, &format!("{at}[{index}]"), found);
                }
            }
            "required" => {
                let mut keys = list().iter().filter_map(Value::as_str);
                let table = value.as_object();
                return table.is_none_or(|table| keys.all(|key| table.contains_key(key)));
            }
            "properties" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    if let Some(rule) = rule.get(key) {
                        self.value(rule, value, &format!("{at}.{key}"), found);
                    }
                }
            }
            "additionalProperties" => {
                assert_eq!(*rule, Value::Bool(false));
                let mut keys = value.as_object().into_iter().flatten();
                return keys.all(|(key, _)| schema["properties"].get(key).is_some());
            }
            annotation => assert!(ANNOTATIONS.contains(&annotation), "keyword {annotation}"),
        }
        true
    }

    fn matching(&self, schemas: &[Value], value: &Value) -> usize {
        let fits = |schema: &&Value| {
            let mut found = Vec::new();
            self.value(schema, value, "", &mut found);
            found.is_empty()
        };
        schemas.iter().filter(fits).count()
    }
}

/// One type, or several.
fn kinds(rule: &Value) -> impl Iterator<Item = &str> {
    let several = rule.as_array().into_iter().flatten();
    several.chain([rule]).filter_map(Value::as_str)
}

fn is(value: &Value, kind: &str) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    }
}
