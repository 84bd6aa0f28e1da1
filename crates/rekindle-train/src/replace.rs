//! Replaces files atomically.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
};

use tempfile::Builder;

/// Prefix of the names of incomplete files.
const PREFIX: &str = ".rekindle-";

/// Writes a file so that its path names, at every moment and after a crash at any moment, either the whole old file
/// or the whole new one.
///
/// The new content is written to a file in the same folder with a unique random name, synced to the disk, and renamed.
/// If that fails, the new file is removed, so a full disk is no fuller than before.
///
/// # Errors
///
/// The system's error, or the error of `write`; then the old file is unchanged.
pub fn replace(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let folder = folder_of(path);
    let mut builder = Builder::new();
    builder.prefix(PREFIX);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As of any new file: the process's mask applies.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut new = builder.tempfile_in(folder)?;
    let mut out = BufWriter::new(new.as_file_mut());
    write(&mut out)?;
    out.flush()?;
    drop(out);
    new.as_file().sync_all()?;
    new.persist(path).map_err(|error| error.error)?;
    sync_folder(folder)
}

/// Removes incomplete files left by a killed process. No other process may write in the folder.
pub(super) fn remove_remains(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// The most bytes of a file of a run's or a sweep's folder that is read whole.
const MOST_READ: u64 = 256 << 20;

/// Fails if a file in the folder of a run or a sweep is not one that a run can have written: a link, a pipe or the like, which
/// somebody may have planted. Returns its bytes.
///
/// # Errors
///
/// The system's error.
pub fn check_regular(path: &Path) -> io::Result<u64> {
    let there = path.symlink_metadata()?;
    match there.is_file() {
        true => Ok(there.len()),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Opens a file to be read and written in place, and creates it if it does not exist. Fails if the path is not a regular
/// file.
pub(super) fn open_regular(path: &Path) -> io::Result<File> {
    if let Err(error) = check_regular(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut options = File::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    options.open(path)
}

/// Reads a file in the folder of a run or a sweep. Fails if the path is not a regular file, or one that is far larger than what
/// a run writes.
///
/// # Errors
///
/// The system's error.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    match check_regular(path)? {
        0..=MOST_READ => fs::read(path),
        more => Err(io::Error::other(format!("it has {more} bytes, too many"))),
    }
}

/// Creates a folder, and all above it that are missing, so that they outlast a crash.
///
/// # Errors
///
/// The system's error.
pub fn create_folder(folder: &Path) -> io::Result<()> {
    let missing = |one: &&Path| !one.as_os_str().is_empty() && !one.exists();
    let missing: Vec<&Path> = folder.ancestors().take_while(missing).collect();
    fs::create_dir_all(folder)?;
    let mut above = missing.into_iter().map(folder_of);
    above.try_for_each(sync_folder)
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Syncs a folder, so that a rename is durable. Only Unix can open folders as files.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match cfg!(unix) {
        true => File::open(folder)?.sync_all(),
        false => Ok(()),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_halfway_leaves_the_old_file_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        replace(&path, |out| out.write_all(b"old")).unwrap();
        let error = replace(&path, |out| {
            out.write_all(b"ne")?;
            out.flush()?;
            Err(io::ErrorKind::StorageFull.into())
        })
        .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_that_others_planted_are_not_followed() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let [path, precious] = ["file", "precious"].map(|name| folder.path().join(name));
        fs::write(&precious, b"precious").unwrap();
        for planted in ["file", "file.new", ".rekindle-", ".file.tmp"] {
            symlink(&precious, folder.path().join(planted)).unwrap();
        }
        replace(&path, |out| out.write_all(b"new")).unwrap();
        let error = open_regular(&folder.path().join("file.new")).unwrap_err();
        assert_eq!(error.to_string(), "it is not a regular file");
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        assert!(path.symlink_metadata().unwrap().is_file());
        // Readable to whom new files are.
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&precious));
    }

    #[test]
    fn what_a_kill_left_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let half = folder.path().join(".rekindle-x1y2z3");
        fs::write(&half, b"half of a fi").unwrap();
        fs::write(folder.path().join("file"), b"whole").unwrap();
        remove_remains(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
