//! CIFAR-10's files.
#![no_main]

use std::fs;

use rekindle_train::data::{open, settings::Source};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    for batch in 1..=5 {
        fs::write(folder.path().join(format!("data_batch_{batch}.bin")), bytes).expect("written");
    }
    let source = Source::Cifar10 {
        folder: folder.path().into(),
    };
    if let Ok(split) = open(&source, 0.0, 1) {
        split.train.batch(&[split.train.len() - 1]);
    }
});
