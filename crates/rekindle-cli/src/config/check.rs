//! Checks a config against its schema: keys, types, words, ranges, lengths.
//!
//! serde's internally tagged enums lose the position of a rejected value, and serde only checks types, while the schema
//! also has ranges and all keys. So a config is checked first, value by value with positions; then serde reads a valid
//! document.
//!
//! A value has one or more forms, which differ in their type or, for tables, in `type` or in their required keys.

use std::{ops::Range, str::FromStr};

use rekindle::size::Size;
use rekindle_plan::Planner;
use rekindle_train::run_dir::SnapshotEvery;
use toml::de::{DeTable, DeValue};

use super::{
    form::Form,
    node::Node,
    problem::{Problem, one_of, suggestion},
    schema::LAYERS,
};
use crate::device::DeviceChoice;

/// Checks a document. A missing top-level key is reported at `span`.
pub fn check(document: &DeTable<'_>, span: Range<usize>) -> Result<(), Problem> {
    check_table(Form::config(), document, &span, "the config", |key| {
        format!("[{key}]")
    })
}

/// Checks the keys of a table, and then its values. `called` is what messages call a table under a key.
fn check_table(
    form: Form,
    table: &DeTable<'_>,
    span: &Range<usize>,
    name: &str,
    called: impl Fn(&str) -> String,
) -> Result<(), Problem> {
    check_keys(form, table, span, name)?;
    for (key, schema) in form.keys() {
        if let Some(value) = table.get(key) {
            check_value(form.at(schema), &Node::new(key, value), &called(key))?;
        }
    }
    Ok(())
}

/// `name` is what messages call the value if it is a table.
fn check_value(form: Form, node: &Node<'_>, name: &str) -> Result<(), Problem> {
    let of = |kinds: &[&str]| -> Vec<Form> {
        let mut forms = form.forms();
        forms.retain(|form| kinds.iter().any(|kind| form.is(kind)));
        forms
    };
    let refused = || node.problem(&expected(form));
    match node.value {
        DeValue::Integer(_) | DeValue::Float(_) => match of(&["integer", "number"])[..] {
            [] => Err(refused()),
            [form, ..] => check_number(form, node),
        },
        DeValue::Boolean(_) if !of(&["boolean"]).is_empty() => Ok(()),
        DeValue::String(text) => match &of(&["string"])[..] {
            [] => Err(refused()),
            words => check_text(node, text, words, &of(&["object"])),
        },
        DeValue::Array(list) => {
            let lists = of(&["array"]);
            let length = list.len() as f64;
            let fits = |form: &&Form| {
                form.bound("minItems").is_none_or(|least| length >= least)
                    && form.bound("maxItems").is_none_or(|most| length <= most)
            };
            let Some(list) = lists.iter().find(fits) else {
                return Err(match lists.is_empty() {
                    true => refused(),
                    false => node.misfit(&expected(form)),
                });
            };
            let items = list.items();
            let mut elements = node.elements();
            elements.try_for_each(|node| check_value(items, &node, &table_name(node.key, None)))
        }
        DeValue::Table(table) => match &of(&["object"])[..] {
            [] => Err(refused()),
            tables => {
                let (form, name) = chosen(form, node, table, tables, name)?;
                check_table(form, table, &node.span, &name, |key| table_name(key, None))
            }
        },
        DeValue::Boolean(_) | DeValue::Datetime(_) => Err(refused()),
    }
}

fn check_number(form: Form, node: &Node<'_>) -> Result<(), Problem> {
    let fits = |number: &f64| {
        number.is_finite()
            && form.bound("minimum").is_none_or(|least| *number >= least)
            && form.bound("maximum").is_none_or(|most| *number <= most)
            && form
                .bound("exclusiveMinimum")
                .is_none_or(|below| *number > below)
            && form
                .bound("exclusiveMaximum")
                .is_none_or(|above| *number < above)
    };
    if !form.is("integer") {
        let fitting = node.number().filter(fits);
        return fitting
            .map(|_| ())
            .ok_or_else(|| node.problem(&words(form)));
    }
    let wanted = match (node.value, node.whole()) {
        (DeValue::Integer(_), Some(whole)) => match form.bound("minimum") {
            Some(least) if (whole as f64) < least => format!("at least {least}"),
            _ => return Ok(()),
        },
        (DeValue::Integer(number), None) => match number.as_str().starts_with('-') {
            true => "a whole number that is not negative".into(),
            false => "a whole number of at most 64 bits".into(),
        },
        _ => "a whole number".into(),
    };
    Err(node.problem(&wanted))
}

/// Checks a text against the format or the words of some forms. `tables` are other forms of the same value: the text may
/// be the name of one that has no other required key.
fn check_text(node: &Node<'_>, text: &str, forms: &[Form], tables: &[Form]) -> Result<(), Problem> {
    if let Some(format) = forms.iter().find_map(|form| form.word("format")) {
        return check_format(node, text, format);
    }
    let choices: Vec<&str> = forms.iter().flat_map(|form| form.choices()).collect();
    if choices.is_empty() || choices.contains(&text) {
        return Ok(());
    }
    if let Some(form) = tables.iter().find(|form| form.tag() == Some(text)) {
        let required = form.required().find(|key| *key != "type");
        let name = table_name(node.key, Some(text));
        return Err(missing(&name, required.unwrap_or("type"), &node.span));
    }
    let known = if tables.is_empty() {
        choices
    } else {
        tags(tables)
    };
    Err(unknown_word(node, text, &known, node.key == LAYERS))
}

/// Checks a text that is parsed later, with the parser's message.
fn check_format(node: &Node<'_>, text: &str, format: &str) -> Result<(), Problem> {
    fn parsed<T: FromStr<Err: ToString>>(text: &str) -> Result<(), String> {
        let parsed = text.parse::<T>();
        parsed.map(|_| ()).map_err(|error| error.to_string())
    }
    let parsed = match format {
        "size" => parsed::<Size>(text),
        "planner" => parsed::<Planner>(text),
        "device" => parsed::<DeviceChoice>(text),
        "time" => parsed::<SnapshotEvery>(text),
        _ => Ok(()),
    };
    parsed.map_err(|error| {
        let message = format!("`{}`: {error}", node.key);
        Problem::new(message, "this value", node.span.clone())
    })
}

/// The form that a table has, and what messages call the table.
fn chosen(
    form: Form,
    node: &Node<'_>,
    table: &DeTable<'_>,
    tables: &[Form],
    name: &str,
) -> Result<(Form, String), Problem> {
    if let [only] = tables {
        return Ok((*only, name.to_owned()));
    }
    if let Some(tag) = table.get("type") {
        let tag = Node::new("type", tag);
        let text = tag
            .value
            .as_str()
            .ok_or_else(|| tag.problem("text in quotes"))?;
        let form = tables.iter().find(|form| form.tag() == Some(text));
        let layer = node.key == LAYERS;
        let form = form.ok_or_else(|| unknown_word(&tag, text, &tags(tables), layer))?;
        let name = if layer {
            table_name(LAYERS, Some(text))
        } else {
            name.to_owned()
        };
        return Ok((*form, name));
    }
    let mut untagged = tables.to_vec();
    untagged.retain(|form| form.required().all(|key| key != "type"));
    let full = |form: &&Form| form.required().all(|key| table.contains_key(key));
    if let [only] = untagged.iter().filter(full).collect::<Vec<_>>()[..] {
        return Ok((*only, name.to_owned()));
    }
    let known: Vec<&str> = tables
        .iter()
        .flat_map(|form| form.keys())
        .map(|(key, _)| key)
        .collect();
    let required = untagged.iter().flat_map(|form| form.required());
    let mut required = ["type"].into_iter().chain(required);
    if let Some(problem) = required.find_map(|key| misspelt(table, key, &known, name)) {
        return Err(problem);
    }
    if !untagged.is_empty() && form.word("x-expected").is_some() {
        return Err(node.misfit(&expected(form)));
    }
    let problem = missing(name, "type", &node.span);
    Err(match node.key == LAYERS {
        false => problem.help(format!("`type` is {}", one_of(&tags(tables)))),
        true => problem.help(
            "write `{ type = \"linear\", out = 10 }`, or a group: `{ repeat = 4, layers = [...] }`",
        ),
    })
}

/// Checks that required keys are there, and no unknown ones.
fn check_keys(
    form: Form,
    table: &DeTable<'_>,
    span: &Range<usize>,
    name: &str,
) -> Result<(), Problem> {
    let known: Vec<&str> = form.keys().map(|(key, _)| key).collect();
    if let Some(key) = form.required().find(|key| !table.contains_key(*key)) {
        let misspelt = misspelt(table, key, &known, name);
        return Err(misspelt.unwrap_or_else(|| missing(name, key, span)));
    }
    let Some((key, span)) = unknown_keys(table, &known).into_iter().next() else {
        return Ok(());
    };
    let all = format!(
        "known keys here: {}; docs/config.md describes them",
        known.join(", ")
    );
    Err(unknown_key(key, span, name).help(meant(key, &known).unwrap_or(all)))
}

/// What is accepted, in words.
fn expected(form: Form) -> String {
    if let Some(words) = form.word("x-expected") {
        return words.to_owned();
    }
    let named = !form.tables().is_empty();
    let mut all: Vec<String> = Vec::new();
    for form in form.forms() {
        let words = match form.is("string") && named {
            true => "a name in quotes".to_owned(),
            false => words(form),
        };
        if !all.contains(&words) {
            all.push(words);
        }
    }
    all.join(" or ")
}

fn words(form: Form) -> String {
    let bounds = ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"];
    match form.word("type") {
        Some("integer") => "a whole number".into(),
        Some("number") => match bounds.map(|key| form.bound(key)) {
            [Some(least), _, Some(most), _] => format!("between {least} and {most}"),
            [Some(least), _, _, Some(above)] => format!("at least {least} and below {above}"),
            [Some(least), ..] => format!("a number of at least {least}"),
            [_, Some(below), ..] => format!("a number above {below}"),
            _ => "a number".into(),
        },
        Some("boolean") => "true or false".into(),
        Some("array") => match ["minItems", "maxItems"].map(|key| form.bound(key)) {
            [Some(2.0), Some(2.0)] => "a pair of them".into(),
            [Some(1.0), _] => "a list of at least one".into(),
            _ => "a list".into(),
        },
        Some("object") => "a table".into(),
        _ => match &form.choices()[..] {
            [] => "text in quotes".into(),
            words => one_of(words),
        },
    }
}

/// What messages call a table under a key, and one whose `type` is known.
fn table_name(key: &str, tag: Option<&str>) -> String {
    match (key == LAYERS, tag) {
        (true, Some(tag)) => format!("layer `{tag}`"),
        (true, None) => "a layer".into(),
        (false, _) => format!("`{key}`"),
    }
}

fn tags(tables: &[Form]) -> Vec<&'static str> {
    tables.iter().filter_map(|form| form.tag()).collect()
}

/// The one of some words that a typed one is close to, as a question.
fn meant(typed: &str, known: &[&str]) -> Option<String> {
    let close = suggestion(typed, known.iter().copied())?;
    Some(format!("did you mean `{close}`?"))
}

fn unknown_word(node: &Node<'_>, text: &str, known: &[&str], layer: bool) -> Problem {
    let mut problem = node.problem(&one_of(known));
    problem.help = meant(text, known);
    if !layer {
        return problem;
    }
    let all = format!(
        "a layer is {}; docs/config.md describes them",
        one_of(known)
    );
    Problem {
        message: format!("unknown layer type `{text}`"),
        label: "unknown type".into(),
        help: problem.help.or(Some(all)),
        ..problem
    }
}

fn missing(name: &str, key: &str, span: &Range<usize>) -> Problem {
    let label = format!("`{key}` is missing here");
    Problem::new(format!("{name} has no `{key}`"), label, span.clone())
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
    let unknown = unknown_keys(table, known);
    let close = suggestion(key, unknown.iter().map(|(key, _)| *key))?;
    let (typed, span) = unknown.into_iter().find(|(key, _)| *key == close)?;
    let help = format!("did you mean `{key}`, which is required here?");
    Some(unknown_key(typed, span, name).help(help))
}

/// Keys that are not known, in the order of the file.
fn unknown_keys<'a>(table: &'a DeTable<'a>, known: &[&str]) -> Vec<(&'a str, Range<usize>)> {
    let keys = table.keys().map(|key| (key.get_ref().as_ref(), key.span()));
    let mut unknown: Vec<_> = keys.filter(|(key, _)| !known.contains(key)).collect();
    unknown.sort_by_key(|(_, span)| span.start);
    unknown
}
