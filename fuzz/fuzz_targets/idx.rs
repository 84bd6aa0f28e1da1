//! IDX files of images and labels, packed and plain.
#![no_main]

use std::fs;

use rekindle_train::data::{open, settings::Source};

/// One image of one value, and its label.
const IMAGES: &[u8] = &[0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 7];
const LABELS: &[u8] = &[0, 0, 8, 1, 0, 0, 0, 1, 3];

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for (images, labels) in [(bytes, LABELS), (IMAGES, bytes)] {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Source::Mnist {
            folder: folder.path().into(),
        };
        // A plain file is preferred to a packed one.
        for end in [".gz", ""] {
            for (kind, content) in [("images-idx3", images), ("labels-idx1", labels)] {
                let name = format!("train-{kind}-ubyte{end}");
                fs::write(folder.path().join(name), content).expect("written");
            }
            if let Ok(split) = open(&source, 0.0, 1) {
                split.train.batch(&[split.train.len() - 1]);
            }
        }
    }
});
