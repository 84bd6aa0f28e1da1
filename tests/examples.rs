//! The examples of recorded steps run, and stay within their budgets: each checks that itself.
//!
//! `cargo test` builds the examples. Where one test target is named, it does not: `cargo build --examples` first.

use std::{env, path::PathBuf, process::Command};

const EXAMPLES: [&str; 5] = ["vgg", "unet", "gpt", "finetune", "recurrent"];

/// Where cargo puts examples: beside the folder of the tests.
fn folder() -> PathBuf {
    let test = env::current_exe().expect("a test has a path");
    let profile = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("`deps` is in a folder");
    profile.join("examples")
}

#[test]
fn examples_stay_within_their_budgets() {
    for name in EXAMPLES {
        let program = folder()
            .join(name)
            .with_extension(env::consts::EXE_EXTENSION);
        assert!(
            program.exists(),
            "{} is not built: run `cargo build --examples`",
            program.display()
        );
        let output = Command::new(program).output().expect("started");
        let said = String::from_utf8_lossy(&output.stdout);
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}{wrong}");
        assert!(
            said.contains("budget") && said.contains("loss"),
            "{name}: {said}"
        );
    }
}
