//! Weights as safetensors: parameters and running statistics, by their paths in the model.

use std::{
    io,
    path::{Path, PathBuf},
};

use burn::{module::Module, tensor::DType};
use burn_store::{ApplyError, ModuleSnapshot, SafetensorsStore};
use serde::{Serializer as _, ser::SerializeMap};
use serde_json::json;

use super::replace::replace;

/// Maximum number of names listed in a message.
const LISTED: usize = 4;

/// The error of weights that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The system could not open or read the file.
    #[error("{}: {source}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not in safetensors format, or is damaged.
    #[error("{}: cannot be read as safetensors: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Tensors that the model has and the file lacks.
    #[error("{}: lacks {names}, which the model has", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The first of them.
        names: String,
    },
    /// Tensors that the file has and the model lacks.
    #[error("{}: holds {names}, which the model lacks", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The first of them.
        names: String,
    },
    /// A tensor of another shape, or one that cannot be read.
    #[error("{}: {reason}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// Which tensor, and both shapes.
        reason: String,
    },
}

/// Replaces the file at `path`, one tensor at a time: burn's store would use a buffer of 1 MiB, too much for a budget
/// of a few megabytes.
pub(super) fn write(model: &impl Module, path: &Path) -> io::Result<()> {
    let tensors = model.collect(None, None, false);
    let mut header = Vec::new();
    let mut entries = serde_json::Serializer::new(&mut header);
    let mut entries = entries.serialize_map(Some(tensors.len()))?;
    let mut end = 0;
    for tensor in &tensors {
        let start = end;
        end += tensor.byte_len();
        let about = json!({
            "dtype": type_name(tensor.dtype)?,
            "shape": &tensor.shape[..],
            "data_offsets": [start, end],
        });
        entries.serialize_entry(&tensor.name, &about)?;
    }
    SerializeMap::end(entries)?;
    // Tensors start at a multiple of 8.
    header.resize(header.len().next_multiple_of(8), b' ');
    replace(path, |out| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(&header)?;
        tensors.into_iter().try_for_each(|tensor| {
            let bytes = tensor.into_bytes().map_err(io::Error::other)?;
            out.write_all(&bytes)
        })
    })
}

fn type_name(dtype: DType) -> io::Result<&'static str> {
    match dtype {
        DType::F32 => Ok("F32"),
        DType::F16 => Ok("F16"),
        DType::BF16 => Ok("BF16"),
        other => Err(io::Error::other(format!(
            "tensors of type {other:?} are not written"
        ))),
    }
}

/// The model with values from a file, which has exactly the model's names and shapes.
pub(super) fn read<M: Module>(mut model: M, path: &Path) -> Result<M, WeightsError> {
    let path = || path.to_path_buf();
    // The store's error would contain a line of its own source.
    std::fs::File::open(path()).map_err(|source| WeightsError::Refused {
        path: path(),
        source,
    })?;
    let mut store = SafetensorsStore::from_file(path())
        .allow_partial(true)
        .validate(false);
    let applied = model
        .load_from(&mut store)
        .map_err(|error| WeightsError::Malformed {
            path: path(),
            reason: error.to_string(),
        })?;
    if let Some(error) = applied.errors.first() {
        let reason = match error {
            ApplyError::ShapeMismatch {
                path,
                expected,
                found,
            } => format!("`{path}` has the shape {found}, but {expected} in the model"),
            other => other.to_string(),
        };
        return Err(WeightsError::Tensor {
            path: path(),
            reason,
        });
    }
    if !applied.missing.is_empty() {
        let names = applied.missing.iter().map(|(name, _)| name.as_str());
        return Err(WeightsError::Missing {
            path: path(),
            names: listed(names.collect()),
        });
    }
    if !applied.unused.is_empty() {
        return Err(WeightsError::Unknown {
            path: path(),
            names: listed(applied.unused.iter().map(String::as_str).collect()),
        });
    }
    Ok(model)
}

fn listed(mut names: Vec<&str>) -> String {
    names.sort_unstable();
    let more = names.len().saturating_sub(LISTED);
    let shown: Vec<String> = names
        .iter()
        .take(LISTED)
        .map(|name| format!("`{}`", name.escape_debug()))
        .collect();
    let shown = shown.join(", ");
    match more {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
