//! Short forms in descriptions, which serde reads into the long form.
//!
//! | written | read as |
//! |---|---|
//! | `3` | `[3, 3]` |
//! | `1`, `[1, 2]` | `[1, 1, 1, 1]`, `[1, 1, 2, 2]`: top, bottom, left, right |
//! | `"a"` | `["a"]` |
//! | `"relu"` | `{ type = "relu" }` |
//!
//! Each function that reads a form has a companion that returns the form's JSON Schema. Two schema keywords are custom:
//! `x-default` says in words from which other keys a default follows, `x-expected` what is accepted if the schema alone
//! is hard to read.

use std::{fmt, marker::PhantomData, str::FromStr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{
        Error, MapAccess, Visitor,
        value::{MapAccessDeserializer, MapDeserializer},
    },
};
use serde_json::{Map, Value, json};

/// Reads a number or a word as the command line does.
pub(crate) fn number_or_word<'de, D: Deserializer<'de>, T: FromStr<Err = String>>(
    deserializer: D,
) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Number(serde_json::Number),
        Word(String),
    }
    let text = match Form::deserialize(deserializer)? {
        Form::Number(number) => number.to_string(),
        Form::Word(word) => word,
    };
    text.parse().map_err(D::Error::custom)
}

/// One number for both directions, or one for each.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Pair {
    Both(usize),
    Each([usize; 2]),
}

impl From<Pair> for [usize; 2] {
    fn from(pair: Pair) -> Self {
        match pair {
            Pair::Both(size) => [size; 2],
            Pair::Each(sizes) => sizes,
        }
    }
}

/// Reads a [`Pair`].
pub(crate) fn pair<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[usize; 2], D::Error> {
    Pair::deserialize(deserializer).map(Into::into)
}

fn pair_from(minimum: u64) -> Schema {
    let number = json_schema!({ "type": "integer", "minimum": minimum });
    json_schema!({
        "anyOf": [number, { "type": "array", "items": number, "minItems": 2, "maxItems": 2 }],
    })
}

/// The schema of a [`pair`] of sizes.
pub(crate) fn pair_of_sizes(_: &mut SchemaGenerator) -> Schema {
    pair_from(1)
}

/// The schema of a [`pair`] that may hold zeros, or one of some words.
pub(crate) fn pair_or_word(words: &[&str]) -> Schema {
    let mut schema = pair_from(0);
    if let Some(forms) = schema
        .get_mut("anyOf")
        .and_then(|forms| forms.as_array_mut())
    {
        forms.insert(0, json!({ "type": "string", "enum": words }));
    }
    schema
}

/// One number for all sides, `[rows, columns]`, or `[top, bottom, left, right]`.
pub(crate) fn sides<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[usize; 4], D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Sides {
        All(usize),
        Pair([usize; 2]),
        Each([usize; 4]),
    }
    Ok(match Sides::deserialize(deserializer)? {
        Sides::All(size) => [size; 4],
        Sides::Pair([rows, columns]) => [rows, rows, columns, columns],
        Sides::Each(sides) => sides,
    })
}

/// The schema of [`sides`].
pub(crate) fn sides_schema(_: &mut SchemaGenerator) -> Schema {
    let number = json_schema!({ "type": "integer", "minimum": 0 });
    let list = |length: u64| json_schema!({ "type": "array", "items": number, "minItems": length, "maxItems": length });
    json_schema!({
        "anyOf": [number, list(2), list(4)],
        "x-expected": "a whole number, [rows, columns] or [top, bottom, left, right]",
    })
}

/// One value, or a list of them.
pub(crate) fn one_or_more<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form<T> {
        One(T),
        List(Vec<T>),
    }
    Form::deserialize(deserializer).map(|form| match form {
        Form::One(value) => vec![value],
        Form::List(values) => values,
    })
}

/// The schema of a file's name, or a list of them.
pub(crate) fn files_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [
            { "type": "string" },
            { "type": "array", "items": { "type": "string" }, "minItems": 1 },
        ],
        "x-expected": "a file or a list of at least one file",
    })
}

/// A table with a `type`, or only its name.
pub(crate) fn named<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    struct Named<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for Named<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a name or a table")
        }

        fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
            T::deserialize(MapDeserializer::new([("type", name)].into_iter()))
        }

        fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(table))
        }
    }
    deserializer.deserialize_any(Named(PhantomData))
}

/// The schema of a [`named`] table.
pub(crate) fn named_schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let name = bare_names::<T>(generator);
    json_schema!({ "anyOf": [name, generator.subschema_for::<T>()] })
}

/// The schema of a table's name alone: the variants that need no key but `type`.
pub(crate) fn bare_names<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let table = T::json_schema(generator);
    let variants = table.get("oneOf").and_then(Value::as_array);
    let names: Vec<&str> = variants
        .into_iter()
        .flatten()
        .filter(|variant| variant["required"] == json!(["type"]))
        .filter_map(|variant| variant["properties"]["type"]["const"].as_str())
        .collect();
    json_schema!({ "type": "string", "enum": names })
}

/// Moves the keys of a struct to each variant of the internally tagged enum that is flattened into it, and allows no
/// others.
pub(crate) fn spread_properties(schema: &mut Schema) {
    let own = schema.remove("properties");
    schema.remove("type");
    let variants = schema.get_mut("oneOf").and_then(Value::as_array_mut);
    for variant in variants.into_iter().flatten() {
        if let Some(own) = own.as_ref().and_then(Value::as_object)
            && let Some(properties) = variant["properties"].as_object_mut()
        {
            let variants_own = std::mem::replace(properties, own.clone());
            properties.extend(variants_own);
        }
        variant["additionalProperties"] = json!(false);
    }
}

/// Takes keys with an `x-default` off the required ones of a struct, or of each variant of an enum.
pub(crate) fn with_following_defaults(schema: &mut Schema) {
    let object = schema.ensure_object();
    match object.get_mut("oneOf").and_then(Value::as_array_mut) {
        None => drop_following(object),
        Some(variants) => variants
            .iter_mut()
            .filter_map(Value::as_object_mut)
            .for_each(drop_following),
    }
}

fn drop_following(object: &mut Map<String, Value>) {
    let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    let mut following = Vec::new();
    for (key, property) in properties {
        if property.get("x-default").is_some() {
            property
                .as_object_mut()
                .map(|property| property.remove("default"));
            following.push(key.clone());
        }
    }
    if let Some(required) = object.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|key| !following.iter().any(|following| key == following));
    }
}
