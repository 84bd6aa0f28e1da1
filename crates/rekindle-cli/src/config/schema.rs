//! The types that serde reads a config into, and the JSON Schema made from them.

use rekindle_train::{
    data::settings::Source,
    model::spec::LayerSpec,
    settings::{Invalid, TrainSettings},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::run::RunKeys;

/// A rekindle config: a model, its data, how it is trained and how it is run.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(expecting = "a table", deny_unknown_fields)]
#[schemars(title = "rekindle config")]
pub struct ConfigFile {
    /// Where samples come from: one source. Relative paths start at the config's folder.
    pub data: Source,
    /// The model.
    pub model: ModelKeys,
    /// How the model is trained.
    #[serde(default)]
    pub train: TrainSettings,
    /// How the schedule is found, and the device. At most one of `segments`, `budget` and `plan` may be given.
    #[serde(default)]
    pub run: RunKeys,
}

/// The model.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(expecting = "a table", deny_unknown_fields)]
pub struct ModelKeys {
    /// Shape of one sample without the batch dimension. Not set, it is the data's.
    pub input: Option<Vec<usize>>,
    /// The layers in order.
    pub layers: Vec<LayerSpec>,
}

impl ConfigFile {
    /// Checks what the types leave open: ranges, and keys that exclude each other. Returns the section of what is wrong.
    pub fn validate(&self) -> Result<(), (&'static str, Invalid)> {
        self.data.validate().map_err(|invalid| ("data", invalid))?;
        let train = self.train.validate();
        train.map_err(|invalid| ("train", invalid))?;
        self.run.validate().map_err(|invalid| ("run", invalid))
    }
}
