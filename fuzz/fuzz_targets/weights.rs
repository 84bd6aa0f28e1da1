//! Weights as safetensors.
#![no_main]

use std::fs;

use rekindle_train::fuzz_weights;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("weights.safetensors");
    fs::write(&path, bytes).expect("written");
    let _ = fuzz_weights(&path);
});
