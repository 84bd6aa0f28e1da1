//! The program where a shell has set limits.

use std::{path::Path, process::Command};

use assert_cmd::cargo::cargo_bin;

/// The program in `folder`, with nothing cached, on two threads, after what a shell does first.
pub fn after(setup: &str, folder: &Path, arguments: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("{setup}; exec \"$0\" \"$@\"")])
        .arg(cargo_bin("rekindle"))
        .args(arguments)
        .env("REKINDLE_CACHE", "")
        .env("RAYON_NUM_THREADS", "2")
        .env_remove("RUST_BACKTRACE")
        .current_dir(folder);
    shell
}
