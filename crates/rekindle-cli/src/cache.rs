//! What is kept between commands: profiles, and kernels compiled for GPUs.

use std::{env, path::PathBuf};

use rekindle_train::profiles::ProfileStore;

/// Names another folder. Where it is empty, nothing is kept.
pub const FOLDER_VARIABLE: &str = "REKINDLE_CACHE";

/// The folder of profiles, if there is one. `fresh` leaves what is there unread, and replaces it.
pub fn profiles(fresh: bool) -> Option<ProfileStore> {
    let folder = match named()? {
        Named::ByUser(folder) => folder,
        Named::Usual(folder) => folder.join("profiles"),
    };
    Some(ProfileStore { folder, fresh })
}

/// The folder of kernels, if there is one.
pub fn kernels() -> Option<PathBuf> {
    let (Named::ByUser(folder) | Named::Usual(folder)) = named()?;
    Some(folder.join("kernels"))
}

enum Named {
    ByUser(PathBuf),
    Usual(PathBuf),
}

fn named() -> Option<Named> {
    match env::var_os(FOLDER_VARIABLE) {
        Some(folder) if folder.is_empty() => None,
        Some(folder) => Some(Named::ByUser(PathBuf::from(folder))),
        None => Some(Named::Usual(dirs::cache_dir()?.join("rekindle"))),
    }
}
