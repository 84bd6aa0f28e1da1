//! Arguments that several commands have.

use std::path::PathBuf;

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use rekindle::{Dtype, meter::Count, size::Size};
use rekindle_plan::Planner;
use rekindle_train::settings::{Accumulate, LossChunks, StateChoice, UpdateChoice};
use schemars::JsonSchema;
use serde::{
    Serialize,
    de::{DeserializeOwned, IntoDeserializer, value},
};
use serde_json::Value;

use crate::device::{DeviceChoice, OffloadChoice};

/// What every command that reads a config takes.
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    /// The TOML file that describes model, data and training
    #[arg(value_name = "CONFIG")]
    pub config: PathBuf,
    #[command(flatten)]
    pub replace: ReplaceArgs,
}

/// What replaces values of a config.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[command(next_help_heading = "Instead of the config's values")]
pub struct ReplaceArgs {
    /// Samples in each step
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Parts that a batch is run in: a number, or auto (as many as are the fastest within the budget)
    #[arg(long, value_name = "N", value_parser = number_or_word::<Accumulate>)]
    pub accumulate: Option<Accumulate>,
    /// How often the largest `repeat` group repeats
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// `synthetic`: random data of the same shape
    #[arg(long, value_name = "KIND", value_parser = ["synthetic"])]
    pub data: Option<String>,
    /// Folder of the data set
    #[arg(long, value_name = "DIR", conflicts_with = "data")]
    pub data_dir: Option<PathBuf>,
    /// Type of parameters and activations: f32, f16 or bf16
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<Dtype>,
    /// When to update parameters: after (the step), in-backward (each as soon as its gradient is complete), or auto (the
    /// default: in-backward only if the budget requires it)
    #[arg(long, value_name = "WHEN", value_parser = word::<UpdateChoice>())]
    pub update: Option<UpdateChoice>,
    /// Number of chunks for the last layer and the loss: a number, auto, or whole (no chunks)
    #[arg(long, value_name = "N", value_parser = number_or_word::<LossChunks>)]
    pub loss_chunks: Option<LossChunks>,
    /// How several ranks keep the optimizer's state: whole (all of it on each rank), sharded (a part on each), or auto (the
    /// default: sharded only if the budget requires it)
    #[arg(long, value_name = "HOW", value_parser = word::<StateChoice>())]
    pub optimizer_state: Option<StateChoice>,
}

/// How a step is to be cut, where one schedule is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Schedule")]
pub struct ScheduleArgs {
    /// Cut the layers into K segments, where the peak is smallest
    #[arg(long, value_name = "K")]
    pub segments: Option<usize>,
    /// Use the fastest schedule with a peak memory of at most SIZE (512MiB, 2GB), or a share of the plain
    /// step's peak (50%) or of the device (80%-of-device)
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub budget: Option<Size>,
    /// Planner: auto (the default: schedules single operations), none, segments (of equal length) or
    /// optimal (over layers)
    #[arg(long, value_name = "NAME")]
    pub planner: Option<Planner>,
}

/// How a command answers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct AnswerArgs {
    /// Write one JSON document to standard output
    #[arg(long)]
    pub json: bool,
}

/// What every command that measures takes.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[command(next_help_heading = "Schedule")]
pub struct MeasureArgs {
    /// Which bytes a budget bounds on a GPU: reserved (the default: pools and the driver's context) or in-use (live buffers)
    #[arg(long, value_name = "WHICH", value_parser = word::<Count>())]
    pub count: Option<Count>,
    /// Whether a plan within a budget may move tensors of a GPU, and optimizer state, to host memory: auto (the
    /// default) or never
    #[arg(long, value_name = "WHEN")]
    pub offload: Option<OffloadChoice>,
    /// auto (the default: cuda:0 if it can be used, else cpu), cpu, cuda, cuda:N, wgpu or wgpu:N
    #[arg(long, value_name = "D", help_heading = "Device and measurement")]
    pub device: Option<DeviceChoice>,
}

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
fn number_or_word<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let number = serde_json::from_str(text).map(Value::Number);
    let value = number.unwrap_or_else(|_| Value::String(text.to_owned()));
    serde_json::from_value(value).map_err(|error| error.to_string())
}
