//! The JSON Schema of a config, made from the types that serde reads it into.

use std::sync::LazyLock;

use rekindle_train::{
    data::settings::DataSettings,
    model::spec::{LayerItem, LayerSpec, unfolded_layers},
    settings::TrainSettings,
};
use schemars::{
    JsonSchema, Schema,
    generate::SchemaSettings,
    transform::{RecursiveTransform, Transform},
};
use serde::Deserialize;
use serde_json::Value;

use super::run::RunKeys;

/// The key of a list of layers.
pub const LAYERS: &str = "layers";

/// A rekindle config: a model, its data, how it is trained and how it is run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "rekindle config")]
pub struct ConfigFile {
    /// Where samples come from. Relative paths start at the config's folder.
    pub data: DataSettings,
    /// The model: its layers in order.
    pub model: ModelKeys,
    /// How the model is trained.
    #[serde(default)]
    pub train: TrainSettings,
    /// How the schedule is found, and the device. At most one of `segments`, `budget` and `plan` may be given.
    #[serde(default)]
    pub run: RunKeys,
}

/// The model.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelKeys {
    /// Shape of one sample without the batch dimension.
    #[schemars(inner(range(min = 1)), extend("x-default" = "follows from the data"))]
    pub input: Option<Vec<usize>>,
    /// The layers, each a table with a `type`, the name alone where no other key is required, or a group that repeats.
    #[serde(deserialize_with = "unfolded_layers")]
    #[schemars(with = "Vec<LayerItem>", length(min = 1))]
    pub layers: Vec<LayerSpec>,
}

/// The schema.
pub static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let mut schema = SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<ConfigFile>();
    RecursiveTransform(as_toml).transform(&mut schema);
    schema.to_value()
});

/// TOML has no `null`, and one kind of whole numbers.
fn as_toml(schema: &mut Schema) {
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    if let Some(Value::Array(kinds)) = schema.get("type") {
        let kind = kinds.iter().find(|kind| *kind != "null").cloned();
        schema.insert("type".into(), kind.unwrap_or_default());
    }
    if let Some(forms) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        forms.retain(|form| form["type"] != "null");
        if let [only] = &forms[..]
            && let Some(only) = only.as_object().cloned()
        {
            schema.remove("anyOf");
            only.into_iter().for_each(|(key, value)| {
                schema.insert(key, value);
            });
        }
    }
    if schema
        .get("type")
        .is_some_and(|kind| kind == "integer" || kind == "number")
    {
        schema.remove("format");
    }
}
