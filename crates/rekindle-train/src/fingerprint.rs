//! The settings that must not change between the parts of one run.
//!
//! The schedule, the budget and the device are not included, because they never change what is computed. Also excluded
//! are the frequency of evaluations and, if the learning rate is constant, the number of steps.

use serde::Serialize;
use serde_json::{Map, Value};

use super::settings::{OnNonFinite, TrainSettings};
use crate::{
    data::{Dataset, Identity, TargetKind},
    model::spec::{ModelSpec, SampleShape},
};

/// Settings that do not change what a run computes. The share for evaluation shows in the number of samples, and steps are
/// added where the rate follows them.
const FREE: [&str; 5] = [
    "steps",
    "update",
    "optimizer_state",
    "eval_split",
    "eval_every",
];

#[derive(Serialize)]
struct Fields<'a> {
    #[serde(flatten)]
    settings: Map<String, Value>,
    data: Data,
    model: &'a ModelSpec,
}

#[derive(Serialize)]
struct Data {
    samples: usize,
    sample: SampleShape,
    target: TargetKind,
    #[serde(flatten)]
    identity: Identity,
}

/// The fingerprint as JSON text: it determines what a run computes.
pub(super) fn fingerprint(
    model: &ModelSpec,
    settings: &TrainSettings,
    data: &dyn Dataset,
) -> String {
    let text = fixed(settings).and_then(|settings| {
        serde_json::to_string(&Fields {
            settings,
            data: Data {
                samples: data.len(),
                sample: data.sample_shape(),
                target: data.target(),
                identity: data.identity(),
            },
            model,
        })
    });
    text.unwrap_or_else(|error| unreachable!("plain fields have a JSON form: {error}"))
}

/// The settings that a run keeps, defaults written out.
fn fixed(settings: &TrainSettings) -> serde_json::Result<Map<String, Value>> {
    let settings = TrainSettings {
        loss_scale: settings.loss_scale(),
        master_weights: settings.keeps_master_weights(),
        ..settings.clone().resolved()
    };
    let mut fields: Map<String, Value> = serde_json::from_value(serde_json::to_value(&settings)?)?;
    fields.retain(|key, _| match key.as_str() {
        "on_nonfinite" => settings.on_nonfinite != OnNonFinite::Stop,
        key => !FREE.contains(&key),
    });
    if settings.rate_depends_on_steps() {
        fields.insert("steps".into(), settings.steps.into());
    }
    Ok(fields)
}

/// One field in which two fingerprints differ.
#[derive(Debug, PartialEq)]
pub(super) struct Difference {
    /// Such as `model.layers[2].out`.
    pub(super) field: String,
    pub(super) recorded: String,
    pub(super) wanted: String,
}

/// The first difference, in the order in which the fields were recorded.
pub(super) fn first_difference(
    recorded: &str,
    wanted: &str,
) -> serde_json::Result<Option<Difference>> {
    let recorded: Value = serde_json::from_str(recorded)?;
    let mut wanted: Value = serde_json::from_str(wanted)?;
    // A run that stops at the first step that is not finite has had none, and continues with any choice.
    if recorded.get("on_nonfinite").is_none()
        && let Some(fields) = wanted.as_object_mut()
    {
        fields.remove("on_nonfinite");
    }
    Ok(compare("", &recorded, &wanted))
}

fn compare(path: &str, recorded: &Value, wanted: &Value) -> Option<Difference> {
    if recorded == wanted {
        return None;
    }
    let differ = |recorded: String, wanted: String| {
        Some(Difference {
            field: path.to_owned(),
            recorded,
            wanted,
        })
    };
    match (recorded, wanted) {
        (Value::Object(one), Value::Object(other)) => {
            let dot = if path.is_empty() { "" } else { "." };
            let added = other.keys().filter(|key| !one.contains_key(*key));
            one.keys().chain(added).find_map(|key| {
                let side = |object: &Map<_, _>| -> Value {
                    object.get(key).cloned().unwrap_or(Value::Null)
                };
                compare(&format!("{path}{dot}{key}"), &side(one), &side(other))
            })
        }
        (Value::Array(one), Value::Array(other)) => one
            .iter()
            .zip(other)
            .enumerate()
            .find_map(|(index, (one, other))| compare(&format!("{path}[{index}]"), one, other))
            .or_else(|| {
                let entries = |count: usize| format!("a list of {count}");
                differ(entries(one.len()), entries(other.len()))
            }),
        _ => differ(shown(recorded), shown(wanted)),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        value => value.to_string(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;

    fn difference(recorded: &str, wanted: &str) -> [String; 3] {
        let found = first_difference(recorded, wanted).unwrap().unwrap();
        [found.field, found.recorded, found.wanted]
    }

    #[test]
    fn the_innermost_field_is_named_with_both_values() {
        assert_eq!(
            difference(
                r#"{"batch": 4, "model": {"layers": [{"out": 3}, {"out": 5}]}}"#,
                r#"{"batch": 4, "model": {"layers": [{"out": 3}, {"out": 7}]}}"#
            ),
            ["model.layers[1].out", "5", "7"]
        );
        assert_eq!(
            difference(r#"{"clip_norm": null}"#, r#"{"clip_norm": 1.5}"#),
            ["clip_norm", "not set", "1.5"]
        );
        assert_eq!(
            difference(r#"{"layers": [1]}"#, r#"{"layers": [1, 2]}"#),
            ["layers", "a list of 1", "a list of 2"]
        );
    }

    #[test]
    fn equal_fingerprints_do_not_differ() {
        let text = r#"{"seed": 18446744073709551615, "rate": 0.1}"#;
        assert_eq!(first_difference(text, text).unwrap(), None);
    }
}
