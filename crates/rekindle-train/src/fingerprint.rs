//! The settings that must not change between the parts of one run.
//!
//! The schedule, the budget and the device are not included, because they never change what is computed. Also excluded
//! are the frequency of evaluations and, if the learning rate is constant, the number of steps.

use serde::Serialize;
use serde_json::Value;

use super::{
    loss_scale::LossScale,
    settings::{
        Clip, LearningRate, LossChunks, LossKind, OnNonFinite, OptimizerSettings, TrainSettings,
    },
};
use crate::{
    data::{Dataset, Identity, TargetKind},
    model::spec::{ModelSpec, SampleShape},
};
use rekindle::dtype::Dtype;

#[derive(Serialize)]
struct Fields<'a> {
    batch: usize,
    /// Only where the batch is run in parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    accumulate: Option<usize>,
    seed: u64,
    dtype: Dtype,
    /// Only where there are such.
    #[serde(skip_serializing_if = "Option::is_none")]
    master_weights: Option<bool>,
    /// Only where the loss is scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_scale: Option<LossScale>,
    loss: LossKind,
    /// Only where the loss runs in chunks, which rounds its sums in another way.
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_chunks: Option<LossChunks>,
    optimizer: OptimizerSettings,
    learning_rate: LearningRate,
    clip: Option<Clip>,
    /// Only where batch normalisation takes the samples of all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    sync_batch_norm: Option<bool>,
    /// Only where the run goes on after steps that are not finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_nonfinite: Option<OnNonFinite>,
    /// Only where the learning rate of each step depends on it.
    steps: Option<usize>,
    data: Data,
    model: &'a ModelSpec,
}

#[derive(Serialize)]
struct Data {
    samples: usize,
    sample: SampleShape,
    classes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_classes: Option<usize>,
    values: Option<usize>,
    #[serde(flatten)]
    identity: Identity,
}

/// The fingerprint as JSON text: it determines what a run computes.
pub(super) fn fingerprint(
    model: &ModelSpec,
    settings: &TrainSettings,
    data: &dyn Dataset,
) -> String {
    let (classes, token_classes, values) = match data.target() {
        TargetKind::Classes(classes) => (Some(classes), None, None),
        TargetKind::TokenClasses(classes) => (None, Some(classes), None),
        TargetKind::Values(values) => (None, None, Some(values)),
    };
    let fields = Fields {
        batch: settings.batch,
        accumulate: (settings.accumulate > 1).then_some(settings.accumulate),
        seed: settings.seed,
        dtype: settings.dtype,
        master_weights: settings.keeps_master_weights().then_some(true),
        loss_scale: Some(settings.loss_scale()).filter(|scale| *scale != LossScale::None),
        loss: settings.loss,
        loss_chunks: (settings.loss_chunks != LossChunks::Whole).then_some(settings.loss_chunks),
        optimizer: settings.optimizer,
        learning_rate: settings.learning_rate,
        clip: settings.clip,
        sync_batch_norm: settings.sync_batch_norm.then_some(true),
        on_nonfinite: Some(settings.on_nonfinite).filter(|choice| *choice != OnNonFinite::Stop),
        steps: settings
            .learning_rate
            .depends_on_steps()
            .then_some(settings.steps),
        data: Data {
            samples: data.len(),
            sample: data.sample_shape(),
            classes,
            token_classes,
            values,
            identity: data.identity(),
        },
        model,
    };
    match serde_json::to_string(&fields) {
        Ok(text) => text,
        Err(error) => unreachable!("plain fields have a JSON form: {error}"),
    }
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
    // A run that stops at the first step that is not finite has none, and continues with any choice.
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
                let side = |object: &serde_json::Map<_, _>| -> Value {
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
            difference(r#"{"clip": null}"#, r#"{"clip": {"max": 1.5}}"#),
            ["clip", "not set", r#"{"max":1.5}"#]
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
