//! One run in a folder at a time.
//!
//! The operating system locks the file `lock`, and releases it when the process ends, in whatever way. The file's
//! content is for the message that another process shows. On a file system without locks nothing is locked.

use std::{
    env,
    fs::{File, TryLockError},
    io::{self, Read, Seek, Write},
    path::Path,
    process,
};

use super::{
    file_error::FileError,
    replace::{check_regular, open_regular},
};

const LOCK: &str = "lock";

/// Maximum number of bytes read from a lock file.
const HOLDER_BYTES: u64 = 1024;

/// Holds a folder until it is dropped.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Locks an existing folder.
    pub(super) fn take(folder: &Path) -> Result<Self, FileError> {
        let path = folder.join(LOCK);
        let refused = || FileError::refused(&path, "locked");
        let mut file = open_regular(&path).map_err(refused())?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = holder(&mut file);
                return Err(FileError::system(
                    folder,
                    format!("is in use by {holder}: wait until that ends, or name another folder"),
                ));
            }
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(refused()(error)),
        }
        // Training continues even if the message cannot be written.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(own_name().as_bytes()));
        Ok(Self { _file: file })
    }
}

/// Whether a process trains in this folder.
#[must_use]
pub fn is_running(folder: &Path) -> bool {
    let path = folder.join(LOCK);
    let lock = check_regular(&path).and_then(|_| File::open(&path));
    lock.is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

/// A description of this process for messages.
fn own_name() -> String {
    let command = env::args_os().map(|argument| argument.to_string_lossy().into_owned());
    let command = command.collect::<Vec<_>>().join(" ");
    let host = sysinfo::System::host_name().unwrap_or_else(|| "an unnamed host".into());
    format!("process {} on {host} (`{command}`)", process::id())
}

/// The process that holds the lock.
fn holder(file: &mut File) -> String {
    let mut said = Vec::new();
    match file.take(HOLDER_BYTES).read_to_end(&mut said) {
        Ok(1..) => String::from_utf8_lossy(&said)
            .chars()
            .filter(|letter| !letter.is_control())
            .collect(),
        _ => "another process".into(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;

    #[test]
    fn a_locked_folder_names_its_holder_until_that_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let held = Lock::take(folder.path()).unwrap();
        let message = Lock::take(folder.path()).unwrap_err().to_string();
        let own = format!("is in use by process {} on ", process::id());
        assert!(message.contains(&own), "{message}");
        drop(held);
        Lock::take(folder.path()).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_others_planted_is_not_locked() {
        let folder = tempfile::tempdir().unwrap();
        let precious = folder.path().join("precious");
        std::fs::write(&precious, b"precious").unwrap();
        std::os::unix::fs::symlink(&precious, folder.path().join(LOCK)).unwrap();
        Lock::take(folder.path()).unwrap_err();
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    }
}
