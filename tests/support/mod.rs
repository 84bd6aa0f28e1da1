//! Running the program in a folder of its own.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

/// A folder with `config` in `run.toml`.
pub fn folder(config: &str) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    fs::write(folder.path().join("run.toml"), config).expect("written");
    folder
}

/// The program in `folder`, with nothing cached, on two threads: each keeps scratch, of which machines with many
/// processors need more than the small budgets here.
pub fn program(folder: &Path, arguments: &[&str]) -> Command {
    let mut program = Command::new(assert_cmd::cargo::cargo_bin("rekindle"));
    program
        .env("REKINDLE_CACHE", "")
        .env("NO_COLOR", "1")
        .env("RAYON_NUM_THREADS", "2")
        .env_remove("RUST_BACKTRACE")
        .current_dir(folder)
        .args(arguments);
    program
}

/// Runs the program.
pub fn rekindle(folder: &Path, arguments: &[&str]) -> Output {
    program(folder, arguments).output().expect("started")
}

/// What it said, in one line.
pub fn messages(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    // Bars stand where the terminal's width breaks a line.
    let words = text
        .split_whitespace()
        .filter(|word| !["│", "|"].contains(word));
    words.collect::<Vec<_>>().join(" ")
}

/// The document that it wrote.
pub fn document(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", messages(output)))
}
