//! Defaults that follow from other keys: they are written out before serde reads the document.

use rekindle_train::{
    data::{TargetKind, settings::Source},
    settings::{LearningRate, LossKind, TrainSettings},
};
use serde_json::{Map, Value, json};

use super::schema::LAYERS;

/// Writes them out. `document` fits the schema.
pub fn write_out(document: &mut Map<String, Value>, source: &Source) -> serde_json::Result<()> {
    if let Some(layers) = document
        .get_mut("model")
        .and_then(|model| model.get_mut(LAYERS))
    {
        follow_in_layers(layers, source.vocab());
    }
    let train = document.entry("train").or_insert_with(|| json!({}));
    match train.as_object_mut() {
        Some(train) => follow_in_train(train, source.target()),
        None => Ok(()),
    }
}

fn follow_in_layers(layers: &mut Value, vocab: Option<usize>) {
    for layer in layers.as_array_mut().into_iter().flatten() {
        let Some(layer) = layer.as_object_mut() else {
            continue;
        };
        match layer.get("type").and_then(Value::as_str) {
            Some("max_pool2d" | "avg_pool2d") => {
                let kernel = layer.get("kernel").cloned().unwrap_or_default();
                layer.entry("stride").or_insert(kernel);
            }
            Some("embedding" | "unembedding") => {
                layer.entry("vocab").or_insert_with(|| json!(vocab));
            }
            _ => {}
        }
        if let Some(inner) = layer.get_mut(LAYERS) {
            follow_in_layers(inner, vocab);
        }
    }
}

fn follow_in_train(train: &mut Map<String, Value>, target: TargetKind) -> serde_json::Result<()> {
    let loss = fitting_loss(target);
    train.entry("loss").or_insert(serde_json::to_value(loss)?);
    let rate = train.remove("learning_rate");
    let TrainSettings {
        optimizer, steps, ..
    } = serde_json::from_value(train.clone().into())?;
    let usual = optimizer.usual_rate();
    let rate = match rate {
        None => json!(usual),
        Some(Value::Object(mut table)) => {
            table.entry("rate").or_insert_with(|| json!(usual));
            if table
                .get("type")
                .is_some_and(|kind| kind == "warmup_cosine")
            {
                let warmup = LearningRate::usual_warmup(steps);
                table.entry("warmup_steps").or_insert_with(|| json!(warmup));
            }
            table.into()
        }
        Some(rate) => rate,
    };
    train.insert("learning_rate".into(), rate);
    Ok(())
}

/// The loss for targets of a kind.
pub fn fitting_loss(target: TargetKind) -> LossKind {
    match target {
        TargetKind::Classes(_) | TargetKind::TokenClasses(_) => LossKind::CrossEntropy,
        TargetKind::Values(_) => LossKind::MeanSquaredError,
    }
}
