//! A TOML document against its JSON Schema: keys, types, words, ranges, lengths.
//!
//! serde's internally tagged enums lose the place of what they reject, and serde stops at a type where a schema also
//! knows ranges and all keys. So a config is checked first, value by value with its place; serde then reads what is
//! known to fit.
//!
//! Schemas come from [`super::schema`]: a value has one or more forms (`anyOf`, `oneOf`), which differ in their TOML type
//! or, of tables, in `type` or in their required keys.

use std::{ops::Range, str::FromStr};

use rekindle::{size::Size, train::run_dir::SnapshotEvery};
use rekindle_plan::PlannerKind;
use serde_json::Value;
use toml::de::{DeTable, DeValue};

use super::{
    node::Node,
    problem::{Problem, one_of, suggestion},
    schema::{LAYERS, resolved},
};
use crate::device::DeviceChoice;

/// A part of a schema, and the whole that its references point into.
#[derive(Clone, Copy)]
struct Form<'s> {
    root: &'s Value,
    schema: &'s Value,
}

/// Checks a document. `span` is where a key that is missing at its top is reported.
pub fn check(schema: &Value, document: &DeTable<'_>, span: Range<usize>) -> Result<(), Problem> {
    let root = Form {
        root: schema,
        schema,
    };
    root.check_keys(document, &span, "the config")?;
    for (key, part) in root.properties() {
        let Some(value) = document.get(key) else {
            continue;
        };
        let node = Node::new(key, value);
        root.of(part).check(&node, &format!("[{key}]"))?;
    }
    Ok(())
}

impl<'s> Form<'s> {
    fn of(self, schema: &'s Value) -> Self {
        Self {
            root: self.root,
            schema: resolved(self.root, schema),
        }
    }

    /// The forms that are no choice between others.
    fn forms(self) -> Vec<Self> {
        let choice = ["anyOf", "oneOf"]
            .into_iter()
            .find_map(|key| self.schema[key].as_array());
        match choice {
            None => vec![self],
            Some(choice) => choice
                .iter()
                .flat_map(|form| self.of(form).forms())
                .collect(),
        }
    }

    fn is(self, kind: &str) -> bool {
        self.schema["type"] == kind
    }

    fn properties(self) -> impl Iterator<Item = (&'s str, &'s Value)> {
        let properties = self.schema["properties"].as_object().into_iter().flatten();
        properties.map(|(key, schema)| (key.as_str(), schema))
    }

    fn required(self) -> impl Iterator<Item = &'s str> {
        let required = self.schema["required"].as_array().into_iter().flatten();
        required.filter_map(Value::as_str)
    }

    /// The `type` of the table that this is the form of.
    fn tag(self) -> Option<&'s str> {
        self.schema["properties"]["type"]["const"].as_str()
    }

    fn bound(self, key: &str) -> Option<f64> {
        self.schema[key].as_f64()
    }

    /// `name` is what messages call the value if it is a table.
    fn check(self, node: &Node<'_>, name: &str) -> Result<(), Problem> {
        let forms = self.forms();
        let of_kind = |kind: &str| {
            let forms = forms.iter().copied();
            forms.filter(|form| form.is(kind)).collect::<Vec<_>>()
        };
        let number = || {
            of_kind("integer")
                .into_iter()
                .chain(of_kind("number"))
                .next()
        };
        let first = |kind| of_kind(kind).into_iter().next();
        let refused = || node.problem(&self.expected(&forms));
        match node.value {
            DeValue::Integer(_) | DeValue::Float(_) => match number() {
                Some(form) => form.check_number(node),
                None => Err(refused()),
            },
            DeValue::Boolean(_) => first("boolean").map(|_| ()).ok_or_else(refused),
            DeValue::Datetime(_) => Err(refused()),
            DeValue::String(text) => match of_kind("string")[..] {
                [] => Err(refused()),
                ref words => check_text(node, text, words, &of_kind("object")),
            },
            DeValue::Array(list) => {
                let lists = of_kind("array");
                let form = lists.iter().find(|form| form.takes(list.len()));
                let form = form.ok_or_else(|| match lists.is_empty() {
                    true => refused(),
                    false => node.misfit(&self.expected(&forms)),
                })?;
                let items = form.of(&form.schema["items"]);
                node.elements()
                    .try_for_each(|node| items.check(&node, &named(node.key)))
            }
            DeValue::Table(table) => match of_kind("object")[..] {
                [] => Err(refused()),
                ref tables => self.check_table(node, table, tables, name),
            },
        }
    }

    fn takes(self, length: usize) -> bool {
        let length = length as f64;
        self.bound("minItems").is_none_or(|least| length >= least)
            && self.bound("maxItems").is_none_or(|most| length <= most)
    }

    fn check_number(self, node: &Node<'_>) -> Result<(), Problem> {
        if self.is("integer") {
            let DeValue::Integer(number) = node.value else {
                return Err(node.problem("a whole number"));
            };
            if number.as_str().starts_with('-') && node.number() != Some(0.0) {
                return Err(node.problem("a whole number that is not negative"));
            }
            let whole = node.whole();
            let whole = whole.ok_or_else(|| node.problem("a whole number of at most 64 bits"))?;
            return match self.schema["minimum"].as_u64() {
                Some(least) if whole < least => Err(node.problem(&format!("at least {least}"))),
                _ => Ok(()),
            };
        }
        let fits = |number: &f64| {
            number.is_finite()
                && self.bound("minimum").is_none_or(|least| *number >= least)
                && self.bound("maximum").is_none_or(|most| *number <= most)
                && self
                    .bound("exclusiveMinimum")
                    .is_none_or(|below| *number > below)
                && self
                    .bound("exclusiveMaximum")
                    .is_none_or(|above| *number < above)
        };
        match node.number().filter(fits) {
            Some(_) => Ok(()),
            None => Err(node.problem(&self.words())),
        }
    }

    fn check_table(
        self,
        node: &Node<'_>,
        table: &DeTable<'_>,
        forms: &[Self],
        name: &str,
    ) -> Result<(), Problem> {
        let (form, name) = match table.get("type") {
            Some(tag) if !tags(forms).is_empty() => {
                let tag = Node::new("type", tag);
                let DeValue::String(text) = tag.value else {
                    return Err(tag.problem("text in quotes"));
                };
                let form = forms.iter().find(|form| form.tag() == Some(text.as_ref()));
                let form =
                    form.ok_or_else(|| unknown_word(&tag, text, forms, node.key == LAYERS))?;
                (*form, table_name(node.key, name, text))
            }
            _ => (self.untagged(node, table, forms, name)?, name.to_owned()),
        };
        form.check_keys(table, &node.span, &name)?;
        for (key, schema) in form.properties() {
            if let Some(value) = table.get(key) {
                form.of(schema).check(&Node::new(key, value), &named(key))?;
            }
        }
        Ok(())
    }

    /// The form of a table without a `type`.
    fn untagged(
        self,
        node: &Node<'_>,
        table: &DeTable<'_>,
        forms: &[Self],
        name: &str,
    ) -> Result<Self, Problem> {
        let free: Vec<Self> = forms
            .iter()
            .copied()
            .filter(|form| form.required().all(|key| key != "type"))
            .collect();
        if let [only] = forms {
            return Ok(*only);
        }
        let full = |form: &&Self| form.required().all(|key| table.contains_key(key));
        if let [only] = free.iter().filter(full).collect::<Vec<_>>()[..] {
            return Ok(*only);
        }
        let keys = forms.iter().flat_map(|form| form.properties());
        let known: Vec<&str> = keys.map(|(key, _)| key).collect();
        let required = free.iter().flat_map(|form| form.required());
        let mut required = ["type"].into_iter().chain(required);
        if let Some(problem) = required.find_map(|key| misspelt(table, key, &known, name)) {
            return Err(problem);
        }
        if !free.is_empty() && self.schema["x-expected"].is_string() {
            return Err(node.misfit(&self.expected(forms)));
        }
        let problem = missing(name, "type", &node.span);
        Err(match node.key == LAYERS {
            false => problem.help(format!("`type` is {}", one_of(&tags(forms)))),
            true => problem.help(
                "write `{ type = \"linear\", out = 10 }`, or a group: `{ repeat = 4, layers = [...] }`",
            ),
        })
    }

    /// Checks that required keys are there, and no unknown ones.
    fn check_keys(
        self,
        table: &DeTable<'_>,
        span: &Range<usize>,
        name: &str,
    ) -> Result<(), Problem> {
        let known: Vec<&str> = self.properties().map(|(key, _)| key).collect();
        for key in self.required() {
            if !table.contains_key(key) {
                let misspelt = misspelt(table, key, &known, name);
                return Err(misspelt.unwrap_or_else(|| missing(name, key, span)));
            }
        }
        let Some((key, span)) = unknown_keys(table, &known).next() else {
            return Ok(());
        };
        let problem = unknown_key(key, span, name);
        Err(match suggestion(key, known.iter().copied()) {
            Some(close) => problem.help(format!("did you mean `{close}`?")),
            None => problem.help(format!(
                "known keys here: {}; docs/config.md describes them",
                known.join(", ")
            )),
        })
    }

    /// What is accepted, in words.
    fn expected(self, forms: &[Self]) -> String {
        if let Some(words) = self.schema["x-expected"].as_str() {
            return words.to_owned();
        }
        let named = forms.iter().any(|form| form.is("object"));
        let mut all: Vec<String> = Vec::new();
        for form in forms {
            let words = match form.is("string") && named {
                true => "a name in quotes".to_owned(),
                false => form.words(),
            };
            if !all.contains(&words) {
                all.push(words);
            }
        }
        all.join(" or ")
    }

    fn words(self) -> String {
        let bounds = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"];
        match self.schema["type"].as_str() {
            Some("integer") => "a whole number".into(),
            Some("number") => match bounds.map(|key| self.bound(key)) {
                [Some(least), _, Some(most), _] => format!("between {least} and {most}"),
                [Some(least), _, _, Some(above)] => format!("at least {least} and below {above}"),
                [Some(least), ..] => format!("a number of at least {least}"),
                [_, Some(below), ..] => format!("a number above {below}"),
                _ => "a number".into(),
            },
            Some("boolean") => "true or false".into(),
            Some("array") => match (&self.schema["minItems"], &self.schema["maxItems"]) {
                (least, most) if least == 2 && most == 2 => "a pair of them".into(),
                (least, _) if least == 1 => "a list of at least one".into(),
                _ => "a list".into(),
            },
            Some("object") => "a table".into(),
            _ => match &self.choices()[..] {
                [] => "text in quotes".into(),
                words => one_of(words),
            },
        }
    }

    /// The words that a text may be; none where it may be any.
    fn choices(self) -> Vec<&'s str> {
        let words = self.schema["enum"].as_array().into_iter().flatten();
        words
            .chain([&self.schema["const"]])
            .filter_map(Value::as_str)
            .collect()
    }
}

/// Checks a text against the words or the format of some forms. `tables` are other forms of the same value: the text may
/// be the name of one that has no other required key.
fn check_text(
    node: &Node<'_>,
    text: &str,
    words: &[Form<'_>],
    tables: &[Form<'_>],
) -> Result<(), Problem> {
    if let Some(format) = words.iter().find_map(|form| form.schema["format"].as_str()) {
        return check_format(node, text, format);
    }
    let choices: Vec<&str> = words.iter().flat_map(|form| form.choices()).collect();
    if choices.is_empty() || choices.contains(&text) {
        return Ok(());
    }
    if let Some(form) = tables.iter().find(|form| form.tag() == Some(text)) {
        let name = table_name(node.key, &named(node.key), text);
        let required = form.required().find(|key| *key != "type");
        return Err(missing(&name, required.unwrap_or("type"), &node.span));
    }
    if tables.is_empty() {
        let problem = node.problem(&one_of(&choices));
        return Err(match suggestion(text, choices) {
            Some(close) => problem.help(format!("did you mean `{close}`?")),
            None => problem,
        });
    }
    Err(unknown_word(node, text, tables, node.key == LAYERS))
}

/// Checks a text that is parsed later, with the parser's message.
fn check_format(node: &Node<'_>, text: &str, format: &str) -> Result<(), Problem> {
    fn parsed<T: FromStr<Err: ToString>>(text: &str) -> Result<(), String> {
        text.parse::<T>()
            .map(|_| ())
            .map_err(|error| error.to_string())
    }
    let parsed = match format {
        "size" => parsed::<Size>(text),
        "planner" => parsed::<PlannerKind>(text),
        "device" => parsed::<DeviceChoice>(text),
        "time" => parsed::<SnapshotEvery>(text),
        _ => Ok(()),
    };
    parsed.map_err(|error| {
        Problem::new(
            format!("`{}`: {error}", node.key),
            "this value",
            node.span.clone(),
        )
    })
}

/// What messages call a table under a key.
fn named(key: &str) -> String {
    match key == LAYERS {
        true => "a layer".into(),
        false => format!("`{key}`"),
    }
}

/// What messages call a table whose `type` is known.
fn table_name(key: &str, name: &str, tag: &str) -> String {
    match key == LAYERS {
        true => format!("layer `{tag}`"),
        false => name.to_owned(),
    }
}

fn tags<'s>(forms: &[Form<'s>]) -> Vec<&'s str> {
    forms.iter().filter_map(|form| form.tag()).collect()
}

fn unknown_word(node: &Node<'_>, text: &str, tables: &[Form<'_>], layer: bool) -> Problem {
    let tags = tags(tables);
    let problem = match layer {
        false => node.problem(&one_of(&tags)),
        true => Problem::new(
            format!("unknown layer type `{text}`"),
            "unknown type",
            node.span.clone(),
        ),
    };
    match suggestion(text, tags.iter().copied()) {
        Some(close) => problem.help(format!("did you mean `{close}`?")),
        None if layer => problem.help(format!(
            "a layer is {}; docs/config.md describes them",
            one_of(&tags)
        )),
        None => problem,
    }
}

fn missing(name: &str, key: &str, span: &Range<usize>) -> Problem {
    Problem::new(
        format!("{name} has no `{key}`"),
        format!("`{key}` is missing here"),
        span.clone(),
    )
}

fn unknown_key(key: &str, span: Range<usize>, name: &str) -> Problem {
    Problem::new(
        format!("unknown key `{key}` in {name}"),
        "unknown key",
        span,
    )
}

/// A required key that is there with another spelling.
fn misspelt(table: &DeTable<'_>, key: &str, known: &[&str], name: &str) -> Option<Problem> {
    let unknown: Vec<_> = unknown_keys(table, known).collect();
    let close = suggestion(key, unknown.iter().map(|(key, _)| *key))?;
    let (typed, span) = unknown.iter().find(|(key, _)| *key == close)?;
    let help = format!("did you mean `{key}`, which is required here?");
    Some(unknown_key(typed, span.clone(), name).help(help))
}

/// Keys that are not known, in the order of the file.
fn unknown_keys<'a>(
    table: &'a DeTable<'a>,
    known: &[&str],
) -> impl Iterator<Item = (&'a str, Range<usize>)> {
    let keys = table.keys().map(|key| (key.get_ref().as_ref(), key.span()));
    let mut unknown: Vec<_> = keys.filter(|(key, _)| !known.contains(key)).collect();
    unknown.sort_by_key(|(_, span)| span.start);
    unknown.into_iter()
}
