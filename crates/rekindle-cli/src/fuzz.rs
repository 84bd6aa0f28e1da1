//! Fuzzing entry point for configs and plan files: any content is read, or rejected with a report that can be rendered.
//! A plan begins with a brace, which no config does.

use std::fs;

use crate::{args::TrainArgs, config, exit, input};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("file");
    fs::write(&path, bytes).expect("written");
    let failure = match bytes.first() {
        Some(b'{') => input::plan(&path).err(),
        _ => {
            let config = Some(path);
            config::load(&TrainArgs {
                config,
                ..TrainArgs::default()
            })
            .err()
        }
    };
    if let Some(failure) = failure {
        assert_eq!(failure.code, exit::USAGE);
        assert!(!format!("{:?}", failure.report()).contains('\u{7}'));
    }
});
