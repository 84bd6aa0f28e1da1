//! IDX files of images and labels, plain and packed.
#![no_main]

use std::fs;

use rekindle_train::data::idx;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["file", "file.gz"] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        if let Ok(images) = idx::read_images(&path) {
            assert_eq!(
                images.count() * images.rows * images.cols,
                images.pixels.len()
            );
        }
        let _ = idx::read_labels(&path);
    }
});
