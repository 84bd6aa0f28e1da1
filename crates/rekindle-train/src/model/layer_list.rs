//! The list of layers in a description: groups may repeat, and a layer without other keys may be written as its name
//! alone.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, de::Error};

use super::spec::LayerSpec;
use crate::short_form;

/// Maximum number of layers in an unfolded list, including those inside residuals: as many as planners accept stages.
pub const MAX_LAYERS: usize = 20_000;

/// A layer: a table, its name alone, or a group of layers. A table and a group may repeat.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum LayerItem {
    /// A layer.
    Layer(RepeatedLayer),
    /// A group.
    Group(LayerGroup),
    /// A layer that needs no other key.
    Name(
        #[serde(deserialize_with = "short_form::named")]
        #[schemars(schema_with = "short_form::bare_names::<LayerSpec>")]
        LayerSpec,
    ),
}

/// A layer, as often as it repeats.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(transform = short_form::spread_properties)]
pub struct RepeatedLayer {
    /// How often it stands there, one after the other.
    #[serde(default = "once")]
    #[schemars(range(min = 1))]
    repeat: usize,
    #[serde(flatten)]
    layer: LayerSpec,
}

/// A group: its layers repeat together.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LayerGroup {
    /// How often it stands there, one after the other.
    #[serde(default = "once")]
    #[schemars(range(min = 1))]
    repeat: usize,
    /// Its layers.
    #[schemars(length(min = 1))]
    layers: Vec<LayerItem>,
}

fn once() -> usize {
    1
}

/// The schema of a list: groups are accepted when reading, and written unfolded.
pub fn schema(generator: &mut SchemaGenerator) -> Schema {
    match generator.contract().is_serialize() {
        true => generator.subschema_for::<Vec<LayerSpec>>(),
        false => generator.subschema_for::<Vec<LayerItem>>(),
    }
}

/// Reads a list and unfolds its groups.
///
/// # Errors
///
/// If it is not a list of layers, or has more than [`MAX_LAYERS`].
pub fn unfolded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LayerSpec>, D::Error> {
    let items = Vec::<LayerItem>::deserialize(deserializer)?;
    let mut layers = Vec::new();
    unfold(items, &mut layers).map_err(D::Error::custom)?;
    Ok(layers)
}

fn unfold(items: Vec<LayerItem>, layers: &mut Vec<LayerSpec>) -> Result<(), String> {
    let mut all = count(layers);
    for item in items {
        let (repeat, turn) = match item {
            LayerItem::Name(layer) => (1, vec![layer]),
            LayerItem::Layer(RepeatedLayer { repeat, layer }) => (repeat, vec![layer]),
            LayerItem::Group(LayerGroup { repeat, layers }) => {
                let mut turn = Vec::new();
                unfold(layers, &mut turn)?;
                (repeat, turn)
            }
        };
        all = all.saturating_add(count(&turn).saturating_mul(repeat));
        if all > MAX_LAYERS {
            return Err(format!("a model has at most {MAX_LAYERS} layers here"));
        }
        for _ in 0..repeat {
            layers.extend_from_slice(&turn);
        }
    }
    Ok(())
}

/// The number of layers, including those inside residuals.
fn count(layers: &[LayerSpec]) -> usize {
    let inside = |layer: &LayerSpec| match layer {
        LayerSpec::Residual { layers } => 1 + count(layers),
        _ => 1,
    };
    layers.iter().map(inside).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(list: Value) -> Result<Vec<LayerSpec>, serde_json::Error> {
        unfolded(list)
    }

    #[test]
    fn names_and_groups_unfold() {
        let layers = read(json!([
            "relu",
            { "repeat": 2, "layers": ["tanh", { "type": "linear", "out": 3 }] },
            { "repeat": 2, "type": "residual", "layers": [{ "repeat": 2, "layers": ["gelu"] }] },
        ]))
        .expect("a list");
        let linear = LayerSpec::Linear { out: 3, bias: true };
        let residual = LayerSpec::Residual {
            layers: vec![LayerSpec::Gelu; 2],
        };
        assert_eq!(
            layers,
            [
                LayerSpec::Relu,
                LayerSpec::Tanh,
                linear.clone(),
                LayerSpec::Tanh,
                linear,
                residual.clone(),
                residual,
            ]
        );
        // What is written is read again.
        let written = serde_json::to_value(&layers).expect("JSON");
        assert_eq!(read(written).expect("a list"), layers);
    }

    #[test]
    fn no_list_unfolds_to_more_layers_than_planners_take() {
        let list = |times: usize| {
            let residual = json!({ "repeat": 100, "type": "residual", "layers": ["relu"] });
            json!([{ "repeat": times, "layers": [residual] }])
        };
        assert_eq!(read(list(100)).expect("a list").len(), 10_000);
        let refused = read(list(101)).expect_err("20,200 layers").to_string();
        assert!(refused.contains("at most 20000 layers"), "{refused}");
        assert!(read(json!([{ "repeat": u64::MAX, "type": "relu" }])).is_err());
    }
}
