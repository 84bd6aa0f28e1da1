//! The settings that must not change between the parts of one run.
//!
//! The schedule, the budget and the device are not included, because they never change what is computed. Also excluded
//! are the frequency of evaluations and, if the learning rate is constant, the number of steps.

use serde_json::{Map, Value, json};

use super::settings::{OnNonFinite, RateSchedule, TrainSettings};
use crate::{data::Dataset, model::spec::ModelSpec};

/// Settings that do not change what a run computes. The share for evaluation shows in the number of samples, and steps are
/// added where the rate follows them.
const FREE: [&str; 5] = [
    "steps",
    "update",
    "optimizer_state",
    "eval_split",
    "eval_every",
];

/// The fingerprint as JSON text: it determines what a run computes.
pub(super) fn fingerprint(
    model: &ModelSpec,
    settings: &TrainSettings,
    data: &dyn Dataset,
) -> String {
    let settings = TrainSettings {
        loss_scale: settings.loss_scale(),
        master_weights: settings.keeps_master_weights(),
        ..settings.clone().resolved()
    };
    let mut fields = object(json!(settings));
    fields.retain(|key, _| !FREE.contains(&key.as_str()));
    if settings.schedule == RateSchedule::WarmupCosine {
        fields.insert("steps".into(), settings.steps.into());
    }
    let mut about = object(data.identity());
    about.extend([
        ("target".to_owned(), json!(data.target())),
        ("samples".to_owned(), json!(data.len())),
        ("sample".to_owned(), json!(data.sample_shape())),
    ]);
    fields.extend([
        ("data".to_owned(), Value::Object(about)),
        ("model".to_owned(), json!(model)),
    ]);
    Value::Object(fields).to_string()
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// The first difference with both values, in the order in which the fields were recorded.
pub(super) fn first_difference(recorded: &str, wanted: &str) -> serde_json::Result<Option<String>> {
    let recorded: Value = serde_json::from_str(recorded)?;
    let mut wanted: Value = serde_json::from_str(wanted)?;
    // A run that stops at the first step that is not finite has had none, and continues with any choice.
    let key = "on_nonfinite";
    if recorded.get(key) == Some(&json!(OnNonFinite::Stop))
        && let Some(own) = wanted.get_mut(key)
    {
        *own = json!(OnNonFinite::Stop);
    }
    let difference = compare("", &recorded, &wanted);
    Ok(difference.map(|found| match found.starts_with("`steps`") {
        true => format!(
            "{found}, and by `schedule = {}` the learning rate of every step depends on it",
            shown(&wanted["schedule"])
        ),
        false => found,
    }))
}

fn compare(path: &str, recorded: &Value, wanted: &Value) -> Option<String> {
    if recorded == wanted {
        return None;
    }
    let inner = match (recorded, wanted) {
        (Value::Object(one), Value::Object(other)) => {
            let dot = if path.is_empty() { "" } else { "." };
            let added = other.keys().filter(|key| !one.contains_key(*key));
            // A key that is missing is null.
            return one.keys().chain(added).find_map(|key| {
                compare(&format!("{path}{dot}{key}"), &recorded[key], &wanted[key])
            });
        }
        (Value::Array(one), Value::Array(other)) => {
            let mut pairs = one.iter().zip(other).enumerate();
            pairs.find_map(|(index, (one, other))| compare(&format!("{path}[{index}]"), one, other))
        }
        _ => None,
    };
    let (was, is) = (shown(recorded), shown(wanted));
    inner.or_else(|| Some(format!("`{path}` is {was} in the snapshot, but {is} now")))
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        Value::Array(entries) => format!("a list of {}", entries.len()),
        value => value.to_string(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_field_is_named_with_both_values() {
        for (recorded, wanted, named) in [
            (
                r#"{"batch": 4, "model": {"layers": [{"out": 3}, {"out": 5}]}}"#,
                r#"{"batch": 4, "model": {"layers": [{"out": 3}, {"out": 7}]}}"#,
                "`model.layers[1].out` is 5 in the snapshot, but 7 now",
            ),
            (
                r#"{"clip_norm": null}"#,
                r#"{"clip_norm": 1.5}"#,
                "`clip_norm` is not set in the snapshot, but 1.5 now",
            ),
            (
                r#"{"layers": [1]}"#,
                r#"{"layers": [1, 2]}"#,
                "`layers` is a list of 1 in the snapshot, but a list of 2 now",
            ),
        ] {
            let found = first_difference(recorded, wanted).unwrap();
            assert_eq!(found.as_deref(), Some(named));
        }
    }

    #[test]
    fn equal_fingerprints_do_not_differ() {
        let text = r#"{"seed": 18446744073709551615, "rate": 0.1}"#;
        assert_eq!(first_difference(text, text).unwrap(), None);
    }
}
