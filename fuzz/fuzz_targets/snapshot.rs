//! Snapshots of a run folder, with the checksum that belongs to what they hold.
#![no_main]

use rekindle_train::fuzz_snapshot;

libfuzzer_sys::fuzz_target!(|body: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let _ = fuzz_snapshot(&folder.path().join("snapshot"), body);
});
