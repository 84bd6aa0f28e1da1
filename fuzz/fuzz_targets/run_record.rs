//! Records of runs.
#![no_main]

use rekindle_train::record::RunRecord;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = RunRecord::from_json(bytes);
});
