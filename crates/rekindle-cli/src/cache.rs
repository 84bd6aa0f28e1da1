//! The cache between commands: kernels compiled for GPUs.

use std::{env, path::PathBuf};

/// The variable that names another folder. If its value is empty, nothing is kept.
pub const FOLDER_VARIABLE: &str = "REKINDLE_CACHE";

/// The folder of kernels, if there is one.
pub fn kernels() -> Option<PathBuf> {
    let folder = match env::var_os(FOLDER_VARIABLE) {
        Some(folder) if folder.is_empty() => return None,
        Some(folder) => PathBuf::from(folder),
        None => dirs::cache_dir()?.join("rekindle"),
    };
    Some(folder.join("kernels"))
}
