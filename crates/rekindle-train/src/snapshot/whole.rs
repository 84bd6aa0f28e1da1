//! Checks the start, end and checksum of a snapshot.

use std::{fs::File, io::Read, path::Path};

use super::format::{EARLIER_STARTS, END, START, TRAILER};
use crate::run_dir_error::RunDirError;

/// Fails if a file's start, end or checksum is wrong.
pub(super) fn check_whole(path: &Path, mut file: File) -> Result<(), RunDirError> {
    let refused = || RunDirError::refused(path, "read");
    let bytes = file.metadata().map_err(refused())?.len();
    let mut start = Vec::new();
    Read::by_ref(&mut file)
        .take(START.len() as u64)
        .read_to_end(&mut start)
        .map_err(refused())?;
    if let Some(earlier) = EARLIER_STARTS
        .iter()
        .find(|earlier| start == earlier.as_bytes())
    {
        return Err(RunDirError::Outdated {
            path: path.to_path_buf(),
            format: earlier.trim_end(),
        });
    }
    if !START.as_bytes().starts_with(&start) {
        return Err(RunDirError::Format {
            path: path.to_path_buf(),
            expected: START.trim_end(),
        });
    }
    let truncated = || RunDirError::Truncated {
        path: path.to_path_buf(),
        bytes,
    };
    let body = bytes
        .checked_sub(START.len() as u64 + TRAILER)
        .ok_or_else(truncated)?;

    let mut checksum = crc32fast::Hasher::new();
    checksum.update(&start);
    let mut left = body;
    let mut buffer = vec![0; 1 << 16];
    while left > 0 {
        let wanted = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let chunk = &mut buffer[..wanted];
        file.read_exact(chunk).map_err(refused())?;
        checksum.update(chunk);
        left -= wanted as u64;
    }
    let (mut end, mut stored) = ([0; END.len()], [0; 4]);
    file.read_exact(&mut end).map_err(refused())?;
    file.read_exact(&mut stored).map_err(refused())?;
    if end != *END {
        return Err(truncated());
    }
    checksum.update(&end);
    let (stored, computed) = (u32::from_le_bytes(stored), checksum.finalize());
    if stored != computed {
        return Err(RunDirError::Checksum {
            path: path.to_path_buf(),
            stored,
            computed,
        });
    }
    Ok(())
}
