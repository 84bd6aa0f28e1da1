//! The JSON file format of chains.

use serde::{Deserialize, Serialize, de::IgnoredAny};

use super::{Chain, ChainError, LossCost, OptimizerCost, Stage, is_absent};
use crate::bytes::Bytes;

/// The `format` of a chain file.
pub const FORMAT: &str = "rekindle-chain/1";

/// What is read; [`Chain::to_json`] writes the same keys.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub(super) struct ChainFile {
    format: String,
    /// Bytes of the input, which is always held.
    input_bytes: Bytes,
    /// Whether the first stage's backward makes a gradient of the input; `false` when absent.
    #[serde(default)]
    input_grad: bool,
    /// Other bytes that are always held: parameters, targets, the process's own; 0 when absent.
    #[serde(default)]
    fixed_bytes: Bytes,
    /// The stages in order, at least one.
    stages: Vec<Stage>,
    /// The loss.
    loss: LossCost,
    /// The optimizer; zeros when absent.
    #[serde(default)]
    optimizer: OptimizerCost,
    /// What `rekindle profile` knows of the step that a chain cannot say, so that `plan --chain` gives the plans that
    /// `plan CONFIG` gives. It may change from version to version. A chain without it is taken at its word, and no reserve
    /// is held back.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
    #[expect(dead_code, reason = "allowed in the file, of no use to a chain")]
    profile: Option<IgnoredAny>,
}

impl Chain {
    /// Reads a chain file and [validates](Chain::validate) it.
    ///
    /// # Errors
    /// JSON errors contain field, line and column; invalid values their stage and field.
    pub fn from_json(text: &str) -> Result<Chain, ChainError> {
        let reader = &mut serde_json::Deserializer::from_str(text);
        let file: Result<ChainFile, _> = serde_path_to_error::deserialize(&mut *reader);
        let file = file.map_err(|error| ChainError(error.to_string()))?;
        reader.end()?;
        if file.format != FORMAT {
            let found = file.format;
            let said = format!("format is {found:?}, expected {FORMAT:?}");
            return Err(ChainError(said));
        }
        let mut chain = Chain {
            input_bytes: file.input_bytes,
            input_grad: file.input_grad,
            fixed_bytes: file.fixed_bytes,
            stages: file.stages,
            loss: file.loss,
            optimizer: file.optimizer,
        };
        for stage in &mut chain.stages {
            if is_absent(&stage.tracked_temp_bytes) {
                stage.tracked_temp_bytes = stage.forward_temp_bytes;
            }
        }
        chain.validate()?;
        Ok(chain)
    }

    /// Writes the chain file, indented. Reading it back gives an equal chain.
    ///
    /// # Errors
    /// The chain does not [validate](Chain::validate).
    pub fn to_json(&self) -> Result<String, ChainError> {
        #[derive(Serialize)]
        struct Tagged<'a> {
            format: &'static str,
            #[serde(flatten)]
            chain: &'a Chain,
        }
        self.validate()?;
        let (format, chain) = (FORMAT, self);
        Ok(serde_json::to_string_pretty(&Tagged { format, chain })?)
    }
}

impl From<serde_json::Error> for ChainError {
    fn from(error: serde_json::Error) -> ChainError {
        ChainError(error.to_string())
    }
}
