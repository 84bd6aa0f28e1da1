//! The JSON file format of chains.
//!
//! Numbers are read as plain JSON numbers first and turned into sizes and times after, so that a wrong one can be
//! reported with its stage and field.

use serde::{Deserialize, Serialize, de::IgnoredAny};
use serde_json::Number;

use super::{Alternative, Chain, ChainError, FORMAT, LossCost, OptimizerCost, Place, Stage};
use crate::bytes::Bytes;
use crate::seconds::Seconds;

/// The largest whole number that a JSON number with a point or an exponent names exactly.
const LARGEST_EXACT: f64 = (1_u64 << 53) as f64;

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct ChainFile {
    format: String,
    /// Bytes of the input, which is always held.
    input_bytes: Number,
    /// Whether the first stage's backward makes a gradient of the input; `false` when absent.
    #[serde(default)]
    input_grad: bool,
    /// Other bytes that are always held: parameters, targets, the process's own; 0 when absent.
    #[serde(default = "zero")]
    fixed_bytes: Number,
    /// The stages in order, at least one.
    stages: Vec<StageFile>,
    /// The loss.
    loss: LossFile,
    /// The optimizer; zeros when absent.
    #[serde(default)]
    optimizer: OptimizerFile,
    /// What `rekindle profile` knows of the step that a chain cannot say, so that `plan --chain` gives the plans that
    /// `plan CONFIG` gives. It may change from version to version. A chain without it is taken at its word, and no reserve
    /// is held back.
    #[serde(default, skip_serializing)]
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value", extend("writeOnly" = false)))]
    #[expect(dead_code, reason = "allowed in the file, of no use to a chain")]
    profile: Option<IgnoredAny>,
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct StageFile {
    /// Its name, for people.
    name: String,
    /// Time of one forward.
    forward_s: Number,
    /// Time of its backward.
    backward_s: Number,
    /// Bytes of the output.
    output_bytes: Number,
    /// Bytes that a tracked forward keeps, the output included, the input not.
    saved_bytes: Number,
    /// Bytes held for a while during an untracked forward.
    forward_temp_bytes: Number,
    /// Bytes held for a while during a tracked forward; as `forward_temp_bytes` when absent.
    #[serde(default)]
    tracked_temp_bytes: Option<Number>,
    /// Bytes held for a while during the backward.
    backward_temp_bytes: Number,
    /// Bytes of parameters, which `fixed_bytes` includes; 0 when absent.
    #[serde(default = "zero")]
    param_bytes: Number,
    /// Bytes of gradients that the backward leaves until the optimizer; 0 when absent.
    #[serde(default = "zero")]
    grad_bytes: Number,
    /// Other ways to run the tracked forward; none when absent, and in chains of `rekindle profile`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    alternatives: Vec<AlternativeFile>,
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct AlternativeFile {
    /// Its name, for people.
    name: String,
    /// Time of the tracked forward.
    forward_s: Number,
    /// Time of its backward.
    backward_s: Number,
    /// Bytes that it keeps.
    saved_bytes: Number,
    /// Bytes held for a while during the forward.
    tracked_temp_bytes: Number,
    /// Bytes held for a while during the backward.
    backward_temp_bytes: Number,
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct LossFile {
    /// Time of its forward.
    forward_s: Number,
    /// Time of its backward.
    backward_s: Number,
    /// Bytes held for a while during the forward.
    forward_temp_bytes: Number,
    /// Bytes held for a while during the backward, without the gradient of the last output.
    backward_temp_bytes: Number,
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct OptimizerFile {
    /// Time of its step.
    step_s: Number,
    /// Bytes held for a while during its step.
    temp_bytes: Number,
    /// Bytes of its state, counted from the first step on.
    state_bytes: Number,
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Chain {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Chain".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        ChainFile::json_schema(generator)
    }
}

impl Default for OptimizerFile {
    fn default() -> OptimizerFile {
        OptimizerFile {
            step_s: zero(),
            temp_bytes: zero(),
            state_bytes: zero(),
        }
    }
}

fn zero() -> Number {
    Number::from(0)
}

impl Chain {
    /// Reads a chain file and [validates](Chain::validate) it.
    ///
    /// # Errors
    /// JSON errors carry line and column; wrong values their stage and field.
    pub fn from_json(text: &str) -> Result<Chain, ChainError> {
        let file: ChainFile = serde_json::from_str(text).map_err(|error| ChainError::Json {
            message: error.to_string(),
            line: error.line(),
            column: error.column(),
        })?;
        if file.format != FORMAT {
            return Err(ChainError::Format { found: file.format });
        }
        let stages = file
            .stages
            .into_iter()
            .enumerate()
            .map(|(index, stage)| read_stage(index, stage));
        let loss = At(&|| Place::Loss);
        let optimizer = At(&|| Place::Optimizer);
        let chain = Chain {
            input_bytes: At(&|| Place::Chain).bytes("input_bytes", &file.input_bytes)?,
            input_grad: file.input_grad,
            fixed_bytes: At(&|| Place::Chain).bytes("fixed_bytes", &file.fixed_bytes)?,
            stages: stages.collect::<Result<_, _>>()?,
            loss: LossCost {
                forward_s: loss.seconds("forward_s", &file.loss.forward_s)?,
                backward_s: loss.seconds("backward_s", &file.loss.backward_s)?,
                forward_temp_bytes: loss
                    .bytes("forward_temp_bytes", &file.loss.forward_temp_bytes)?,
                backward_temp_bytes: loss
                    .bytes("backward_temp_bytes", &file.loss.backward_temp_bytes)?,
            },
            optimizer: OptimizerCost {
                step_s: optimizer.seconds("step_s", &file.optimizer.step_s)?,
                temp_bytes: optimizer.bytes("temp_bytes", &file.optimizer.temp_bytes)?,
                state_bytes: optimizer.bytes("state_bytes", &file.optimizer.state_bytes)?,
            },
        };
        chain.validate()?;
        Ok(chain)
    }

    /// Writes the chain file, indented. Reading it back gives an equal chain.
    ///
    /// # Errors
    /// The chain does not [validate](Chain::validate).
    pub fn to_json(&self) -> Result<String, ChainError> {
        self.validate()?;
        let file = ChainFile {
            format: FORMAT.to_owned(),
            input_bytes: self.input_bytes.0.into(),
            input_grad: self.input_grad,
            fixed_bytes: self.fixed_bytes.0.into(),
            stages: self.stages.iter().map(write_stage).collect(),
            loss: LossFile {
                forward_s: write_seconds(self.loss.forward_s),
                backward_s: write_seconds(self.loss.backward_s),
                forward_temp_bytes: self.loss.forward_temp_bytes.0.into(),
                backward_temp_bytes: self.loss.backward_temp_bytes.0.into(),
            },
            optimizer: OptimizerFile {
                step_s: write_seconds(self.optimizer.step_s),
                temp_bytes: self.optimizer.temp_bytes.0.into(),
                state_bytes: self.optimizer.state_bytes.0.into(),
            },
            profile: None,
        };
        serde_json::to_string_pretty(&file).map_err(|error| ChainError::Json {
            message: error.to_string(),
            line: error.line(),
            column: error.column(),
        })
    }
}

/// Reads numbers at one place of the chain.
struct At<'a>(&'a dyn Fn() -> Place);

impl At<'_> {
    fn bytes(&self, field: &'static str, number: &Number) -> Result<Bytes, ChainError> {
        let whole = number.as_u64().or_else(|| {
            let value = number.as_f64()?;
            (value.fract() == 0.0 && (0.0..=LARGEST_EXACT).contains(&value)).then_some(value as u64)
        });
        whole.map(Bytes).ok_or_else(|| ChainError::Size {
            place: self.0(),
            field,
            value: number.to_string(),
        })
    }

    fn seconds(&self, field: &'static str, number: &Number) -> Result<Seconds, ChainError> {
        let value = number.as_f64().unwrap_or(f64::NAN);
        if value.is_finite() && value >= 0.0 {
            Ok(Seconds(value))
        } else {
            Err(ChainError::Time {
                place: self.0(),
                field,
                value,
            })
        }
    }
}

fn read_stage(index: usize, file: StageFile) -> Result<Stage, ChainError> {
    let place = || Place::Stage(index, file.name.clone());
    let at = At(&place);
    let forward_temp_bytes = at.bytes("forward_temp_bytes", &file.forward_temp_bytes)?;
    let tracked_temp_bytes = match &file.tracked_temp_bytes {
        Some(number) => at.bytes("tracked_temp_bytes", number)?,
        None => forward_temp_bytes,
    };
    let alternatives = file.alternatives.iter().enumerate().map(|(number, way)| {
        let place = || Place::Alternative(index, file.name.clone(), number + 1, way.name.clone());
        let at = At(&place);
        Ok(Alternative {
            name: way.name.clone(),
            forward_s: at.seconds("forward_s", &way.forward_s)?,
            backward_s: at.seconds("backward_s", &way.backward_s)?,
            saved_bytes: at.bytes("saved_bytes", &way.saved_bytes)?,
            tracked_temp_bytes: at.bytes("tracked_temp_bytes", &way.tracked_temp_bytes)?,
            backward_temp_bytes: at.bytes("backward_temp_bytes", &way.backward_temp_bytes)?,
        })
    });
    Ok(Stage {
        alternatives: alternatives.collect::<Result<_, ChainError>>()?,
        forward_s: at.seconds("forward_s", &file.forward_s)?,
        backward_s: at.seconds("backward_s", &file.backward_s)?,
        output_bytes: at.bytes("output_bytes", &file.output_bytes)?,
        saved_bytes: at.bytes("saved_bytes", &file.saved_bytes)?,
        forward_temp_bytes,
        tracked_temp_bytes,
        backward_temp_bytes: at.bytes("backward_temp_bytes", &file.backward_temp_bytes)?,
        param_bytes: at.bytes("param_bytes", &file.param_bytes)?,
        grad_bytes: at.bytes("grad_bytes", &file.grad_bytes)?,
        name: file.name,
    })
}

fn write_stage(stage: &Stage) -> StageFile {
    StageFile {
        name: stage.name.clone(),
        forward_s: write_seconds(stage.forward_s),
        backward_s: write_seconds(stage.backward_s),
        output_bytes: stage.output_bytes.0.into(),
        saved_bytes: stage.saved_bytes.0.into(),
        forward_temp_bytes: stage.forward_temp_bytes.0.into(),
        tracked_temp_bytes: Some(stage.tracked_temp_bytes.0.into()),
        backward_temp_bytes: stage.backward_temp_bytes.0.into(),
        param_bytes: stage.param_bytes.0.into(),
        grad_bytes: stage.grad_bytes.0.into(),
        alternatives: stage
            .alternatives
            .iter()
            .map(|way| AlternativeFile {
                name: way.name.clone(),
                forward_s: write_seconds(way.forward_s),
                backward_s: write_seconds(way.backward_s),
                saved_bytes: way.saved_bytes.0.into(),
                tracked_temp_bytes: way.tracked_temp_bytes.0.into(),
                backward_temp_bytes: way.backward_temp_bytes.0.into(),
            })
            .collect(),
    }
}

/// A validated chain has only finite times, which JSON can hold.
fn write_seconds(seconds: Seconds) -> Number {
    Number::from_f64(seconds.0).unwrap_or_else(zero)
}
