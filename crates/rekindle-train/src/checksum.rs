//! The checksum of a file's content.

use std::io::{self, Read};

/// Reads to the end; returns the number of bytes and their CRC-32.
pub(crate) fn checksum(mut from: impl Read) -> io::Result<(u64, u32)> {
    let mut checksum = crc32fast::Hasher::new();
    let mut bytes = 0;
    let mut part = vec![0; 1 << 16];
    loop {
        match from.read(&mut part)? {
            0 => return Ok((bytes, checksum.finalize())),
            read => {
                checksum.update(&part[..read]);
                bytes += read as u64;
            }
        }
    }
}
