//! Where profiles are kept between commands.

use std::{env, path::PathBuf};

use rekindle::profile::ProfileStore;

/// Names another folder for profiles. Where it is empty, none are kept.
pub const FOLDER_VARIABLE: &str = "REKINDLE_CACHE";

/// The folder of profiles, if there is one. `fresh` leaves what is there unread, and replaces it.
pub fn profiles(fresh: bool) -> Option<ProfileStore> {
    let folder = match env::var_os(FOLDER_VARIABLE) {
        Some(folder) if folder.is_empty() => return None,
        Some(folder) => PathBuf::from(folder),
        None => dirs::cache_dir()?.join("rekindle").join("profiles"),
    };
    Some(ProfileStore { folder, fresh })
}
