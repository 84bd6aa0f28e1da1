//! Whether plans may move tensors to host memory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether plans may move tensors to host memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OffloadChoice {
    /// On GPUs, where a plan is faster so or nothing else fits.
    #[default]
    Auto,
    /// Tensors stay on the device.
    Never,
}
