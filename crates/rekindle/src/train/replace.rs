//! Files that are replaced whole or not at all.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use super::run_dir_error::RunDirError;

/// Writes a file so that its path names, at every moment and after a crash at any moment, either the whole old file
/// or the whole new one.
///
/// The new content goes to `<name>.new` beside it, then to the disk, then takes the name over. When that fails,
/// the file that was written so far is removed: a full disk stays no fuller than it was.
///
/// # Errors
///
/// What the system refused, or what `write` returned; the old file is untouched then.
pub(super) fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), RunDirError> {
    let new = beside(path);
    let written = write_through(&new, write).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // The first error is the one to tell; what is left over is overwritten by the next attempt.
        let _ = fs::remove_file(&new);
    }
    written
        .and_then(|()| sync_folder(path))
        .map_err(RunDirError::refused(path, "written"))
}

fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".new");
    name.into()
}

fn write_through(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    write(&mut out)?;
    out.flush()?;
    out.get_ref().sync_all()
}

/// Makes a rename last. Only Unix opens folders as files.
fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if cfg!(unix) && !folder.as_os_str().is_empty() => {
            File::open(folder)?.sync_all()
        }
        _ => Ok(()),
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
        assert_eq!(
            error.to_string(),
            format!("{}: cannot be written: no storage space", path.display())
        );
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_crash_left_beside_it_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(folder.path().join("file.new"), b"half of a longer fi").unwrap();
        replace(&path, |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
