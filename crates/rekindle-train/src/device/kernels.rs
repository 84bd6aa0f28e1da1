//! Compiled kernels and autotune's choices, kept from one process to the next.
//!
//! cubecl keeps both in a database. Keys of kernels contain cubecl's version, the program's build, the compute
//! capability and the device's number, but not the driver, NVRTC, or which GPU has that number. Keys of choices do not
//! even contain the compute capability, and a kernel that was chosen with tensor cores panics without them. So each
//! combination of these has its own folder. Processes share it: cubecl's database supports several at once.
//!
//! ```text
//! FOLDER/cuda-0-nvidia-h100-80gb-hbm3-compute-9-0-driver-580-159-04-nvrtc-1f2e3d4c/
//!   kernels.db, kernels.db-wal    cubecl's
//!   chosen                        blocks of operations whose kernels are chosen, by hash: docs/cuda.md
//!   seal                          names, lengths and CRC-32 of these three, as they were last seen whole
//!   lock                          locked by every process that uses them
//! ```
//!
//! The database has no checksums, and a damaged one may produce kernels that compute wrong results. Therefore a process
//! that is the only user of a folder checks the seal, and empties the folder if the seal is missing or does not match;
//! then kernels are compiled again. A seal is written when a run has its plan, after its first step, and [at the end](seal_kernels)
//! of a process. What a killed process has added to the log since then is kept: each frame of the log has a checksum, and
//! the database reads it up to the first that does not match.
//!
//! A folder of another driver or another version stays; any of them may be deleted at any time.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use super::DeviceInfo;
use crate::{checksum::checksum, replace::open_regular};

const DATABASE: [&str; 3] = ["kernels.db", "kernels.db-wal", "chosen"];
/// What the processes that use the database share. Without it the log is read, and its checksums compared.
const SHARED: &str = "kernels.db-tshm";
const SEAL: &str = "seal";
const LOCK: &str = "lock";

/// Maximum number of letters in a folder's name that describe the device.
const LETTERS: usize = 64;

static KEPT: OnceLock<Kernels> = OnceLock::new();

/// Keeps compiled kernels and autotune's choices for `device` in a separate folder inside `folder`. Call this once,
/// before the first use of a GPU in this process; later calls have no effect. A place named in `cubecl.toml`,
/// `burn.toml` or the environment takes precedence.
///
/// # Errors
///
/// If the folder cannot be created, written or locked: then kernels are not kept.
pub fn keep_kernels(folder: &Path, device: &DeviceInfo) -> io::Result<()> {
    let kernels = Kernels::open(folder.join(identity(device)))?;
    if KEPT.set(kernels).is_ok() {
        #[cfg(feature = "cubecl")]
        if let Some(folder) = kept_kernels() {
            rekindle::cubecl::keep_kernels_in(folder.to_path_buf());
        }
    }
    Ok(())
}

/// Where this process keeps its kernels, if it does.
#[must_use]
pub fn kept_kernels() -> Option<&'static Path> {
    KEPT.get().map(|kernels| &*kernels.folder)
}

/// Seals the kernels that this process has kept so far. Call this at the end of the process, and where it has compiled much;
/// otherwise the next process may compile again.
pub fn seal_kernels() {
    if let Some(kernels) = KEPT.get() {
        kernels.seal();
    }
}

/// The name of a folder, which identifies the device and software for which its contents are valid.
fn identity(device: &DeviceInfo) -> String {
    let (id, name, toolchain) = (device.device, &device.name, &device.toolchain);
    let all = format!("{id}\n{name}\n{toolchain}\n{}", env!("CARGO_PKG_VERSION"));
    let words = format!("{id} {name} {toolchain}").to_lowercase();
    let words = words.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let mut named = words.join("-");
    named.truncate(LETTERS);
    format!("{named}-{:08x}", crc32fast::hash(all.as_bytes()))
}

/// One device's folder, in use.
#[derive(Debug)]
struct Kernels {
    folder: PathBuf,
    /// Shared with other processes that use the folder.
    lock: File,
}

impl Kernels {
    fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        let lock = open_regular(&folder.join(LOCK))?;
        let kernels = Self { folder, lock };
        match kernels.lock.try_lock() {
            Ok(()) => {
                if !kernels.is_sealed() {
                    kernels.empty()?;
                }
                let _ = fs::remove_file(kernels.folder.join(SHARED));
                kernels.lock.unlock()?;
            }
            // The process that holds the lock has already checked the seal.
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        kernels.lock.lock_shared()?;
        Ok(kernels)
    }

    fn is_sealed(&self) -> bool {
        let Ok(seal) = fs::read_to_string(self.folder.join(SEAL)) else {
            return false;
        };
        // All but the database itself only grow.
        let sealed = |name: &str| {
            let length = |line: &str| line.strip_prefix(name)?.split(' ').nth(1)?.parse().ok();
            match name == DATABASE[0] {
                true => u64::MAX,
                false => seal.lines().find_map(length).unwrap_or(u64::MAX),
            }
        };
        self.digest(sealed).is_ok_and(|digest| digest == seal)
    }

    fn empty(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.is_dir() {
                fs::remove_dir_all(path)?;
            } else if !path.ends_with(LOCK) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Writes a seal. If that fails, the seal is treated as missing.
    fn seal(&self) {
        if let Ok(digest) = self.digest(|_| u64::MAX) {
            let _ = fs::write(self.folder.join(SEAL), digest);
        }
    }

    /// Names, lengths and checksums of the database's files, of each only the first bytes, so `many`.
    fn digest(&self, many: impl Fn(&str) -> u64) -> io::Result<String> {
        let mut digest = String::new();
        for name in DATABASE {
            match File::open(self.folder.join(name)) {
                Ok(file) => {
                    let (length, sum) = checksum(file.take(many(name)))?;
                    digest.push_str(&format!("{name} {length} {sum:08x}\n"));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(digest)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;
    use crate::device::DeviceId;

    fn gpu(index: usize, name: &str, driver: &str) -> DeviceInfo {
        DeviceInfo {
            device: DeviceId::Cuda(index),
            name: name.into(),
            toolchain: format!("driver {driver}"),
            ..DeviceInfo::default()
        }
    }

    /// A folder with a database in it, sealed by the process that used it.
    fn filled(folder: &Path) {
        let kernels = Kernels::open(folder.to_path_buf()).unwrap();
        fs::write(folder.join(DATABASE[0]), b"compiled").unwrap();
        fs::write(folder.join(DATABASE[1]), b"and more").unwrap();
        kernels.seal();
    }

    #[test]
    fn gpus_and_drivers_have_folders_of_their_own() {
        let one = identity(&gpu(0, "NVIDIA H100 80GB HBM3", "580.159.04"));
        assert!(
            one.starts_with("cuda-0-nvidia-h100-80gb-hbm3-driver-580-159-04-"),
            "{one}"
        );
        for other in [
            gpu(1, "NVIDIA H100 80GB HBM3", "580.159.04"),
            gpu(0, "NVIDIA A100", "580.159.04"),
            gpu(0, "NVIDIA H100 80GB HBM3", "581.0"),
        ] {
            assert_ne!(identity(&other), one);
        }
        let long = identity(&gpu(0, "../../µ".repeat(99).as_str(), "/"));
        assert!(
            long.len() <= LETTERS + 9 && !long.contains(['/', '.']),
            "{long}"
        );
    }

    #[test]
    fn what_was_sealed_stays_and_what_was_damaged_or_left_open_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu");
        let database = path.join(DATABASE[0]);
        filled(&path);
        drop(Kernels::open(path.clone()).unwrap());
        assert_eq!(fs::read(&database).unwrap(), b"compiled");
        // Beside another process, nothing is compared.
        let other = Kernels::open(path.clone()).unwrap();
        fs::write(&database, b"being written").unwrap();
        drop(Kernels::open(path.clone()).unwrap());
        assert!(database.exists());
        drop(other);
        // No seal of this.
        drop(Kernels::open(path.clone()).unwrap());
        assert!(!database.exists());

        let log = path.join(DATABASE[1]);
        for (file, damage) in [
            (&database, &b"compilEd"[..]),
            (&database, b"comp"),
            (&database, b"compiled more"),
            (&database, b""),
            (&log, b"And more, and more"),
            (&log, b"and"),
        ] {
            filled(&path);
            fs::write(file, damage).unwrap();
            drop(Kernels::open(path.clone()).unwrap());
            assert!(!database.exists() && !path.join(SEAL).exists());
        }
        // A process that was killed after its seal has added to the log.
        filled(&path);
        fs::write(&log, b"and more, and more").unwrap();
        drop(Kernels::open(path.clone()).unwrap());
        assert_eq!(fs::read(&log).unwrap(), b"and more, and more");
        filled(&path);
        fs::remove_file(&database).unwrap();
        fs::create_dir(&database).unwrap();
        drop(Kernels::open(path.clone()).unwrap());
        assert!(!database.exists());
        // What cannot be a folder is an error, not a panic.
        assert!(Kernels::open(path.join(LOCK)).is_err());
    }
}
