//! The checksum of a file's content.

use std::io::{self, Read};

use flate2::CrcReader;

/// Reads to the end; returns the number of bytes and their CRC-32.
pub(crate) fn checksum(from: impl Read) -> io::Result<(u64, u32)> {
    let mut from = CrcReader::new(from);
    let bytes = io::copy(&mut from, &mut io::sink())?;
    Ok((bytes, from.crc().sum()))
}
