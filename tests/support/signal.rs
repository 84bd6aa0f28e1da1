//! Stopping the program while it runs.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::support::program;

/// Sends the program, run in `folder`, a signal once it has said a line that `due` knows. Its messages are those after
/// that line.
pub fn signalled(
    folder: &Path,
    arguments: &[&str],
    due: impl Fn(&str) -> bool,
    signal: &str,
) -> Output {
    let mut child = program(folder, arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut messages = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !due(&line) {
        line.clear();
        assert_ne!(messages.read_line(&mut line).expect("text"), 0, "ended");
    }
    let killed = Command::new("kill")
        .args([signal, &child.id().to_string()])
        .status();
    assert!(killed.expect("kill").success());
    let mut stderr = Vec::new();
    messages.read_to_end(&mut stderr).expect("text");
    let output = child.wait_with_output().expect("ended");
    Output { stderr, ..output }
}
