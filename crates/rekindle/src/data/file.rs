//! Whole files into memory, plain or gzipped.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use flate2::read::MultiGzDecoder;

use super::error::DataError;

/// All bytes of a file, as they are.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    fs::read(path).map_err(|source| DataError::from_io(path, "file", source))
}

/// All bytes of a file, unpacked if its name ends in `.gz`.
pub(super) fn read_unpacked(path: &Path) -> Result<Vec<u8>, DataError> {
    let packed = read(path)?;
    if path.extension().is_none_or(|extension| extension != "gz") {
        return Ok(packed);
    }
    let mut bytes = Vec::new();
    MultiGzDecoder::new(packed.as_slice())
        .read_to_end(&mut bytes)
        .map_err(|source| DataError::Gzip {
            path: path.to_path_buf(),
            source,
        })?;
    Ok(bytes)
}

/// The first of `names` that is a file in `folder`, plain before `.gz`.
pub(super) fn find(folder: &Path, names: &[&str]) -> Option<PathBuf> {
    names.iter().find_map(|name| {
        let plain = folder.join(name);
        let packed = folder.join(format!("{name}.gz"));
        [plain, packed].into_iter().find(|path| path.is_file())
    })
}

/// Fails if `folder` is not a folder that can be listed.
pub(super) fn require_folder(folder: &Path) -> Result<(), DataError> {
    fs::read_dir(folder)
        .map(drop)
        .map_err(|source| DataError::from_io(folder, "folder", source))
}
