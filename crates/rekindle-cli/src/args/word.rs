//! Values that need custom parsers for clap.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use schemars::JsonSchema;
use serde::de::{DeserializeOwned, IntoDeserializer, value};
use serde_json::Value;

/// Reads a word as serde does. Its schema says which words there are, and what each means.
pub(super) fn word<T>() -> impl TypedValueParser<Value = T>
where
    T: JsonSchema + DeserializeOwned + Clone + Send + Sync + 'static,
{
    let schema = schemars::schema_for!(T).to_value();
    let words = schema["oneOf"].as_array().into_iter().flatten();
    let words = words.filter_map(|word| {
        // clap keeps its possible values as long as the program runs.
        let value = PossibleValue::new(&*word["const"].as_str()?.to_owned().leak());
        Some(match word["description"].as_str() {
            Some(help) => value.help(&*help.replace('\n', " ").leak()),
            None => value,
        })
    });
    PossibleValuesParser::new(words).try_map(|word| {
        let from: value::StrDeserializer<'_, value::Error> = word.as_str().into_deserializer();
        T::deserialize(from)
    })
}

/// Reads a number or a word as serde does.
pub(super) fn number_or_word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let number = serde_json::from_str(text).map(Value::Number);
    let value = number.unwrap_or_else(|_| Value::String(text.to_owned()));
    serde_json::from_value(value).map_err(|error| error.to_string())
}
