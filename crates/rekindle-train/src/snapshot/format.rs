//! The marks of a snapshot's file.

pub(super) const START: &str = "rekindle-snapshot/3\n";
/// How files of earlier versions start: the first with burn 0.21, the second with the whole history inside.
pub(super) const EARLIER_STARTS: [&str; 2] = ["rekindle-snapshot/1\n", "rekindle-snapshot/2\n"];
pub(super) const END: &[u8; 4] = b"end\n";
/// Bytes of [`END`] and of the checksum.
pub(super) const TRAILER: u64 = 8;

/// Names inside a parameter's state start with nothing: the id stands beside them.
pub(super) const STATE_PREFIX: &str = "";
