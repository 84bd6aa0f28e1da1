//! The program while it runs.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, ChildStderr, Command, Output, Stdio},
};

use crate::support::program;

/// A program that was started, and what it says.
pub struct Running {
    child: Child,
    said: BufReader<ChildStderr>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let said = BufReader::new(child.stderr.take().expect("piped"));
        Self { child, said }
    }

    pub fn id(&self) -> String {
        self.child.id().to_string()
    }

    /// Reads on to a line that `due` knows.
    pub fn read_to(&mut self, due: impl Fn(&str) -> bool) {
        let mut line = String::new();
        while !due(&line) {
            line.clear();
            assert_ne!(self.said.read_line(&mut line).expect("text"), 0, "ended");
        }
    }

    pub fn send(&self, signal: &str, times: usize) {
        let kill = format!("kill {signal} {}", self.id());
        let all = vec![kill; times].join("; ");
        let sent = Command::new("sh").args(["-c", &all]).status();
        assert!(sent.expect("sh").success());
    }

    /// Waits for its end. Its messages are those that were not read before.
    pub fn end(mut self) -> Output {
        let mut stderr = Vec::new();
        self.said.read_to_end(&mut stderr).expect("text");
        let output = self.child.wait_with_output().expect("ended");
        Output { stderr, ..output }
    }
}

/// Sends the program, run in `folder`, a signal once it has said a line that `due` knows. Its messages are those after
/// that line.
pub fn signalled(
    folder: &Path,
    arguments: &[&str],
    due: impl Fn(&str) -> bool,
    signal: &str,
) -> Output {
    let mut running = Running::start(&mut program(folder, arguments));
    running.read_to(due);
    running.send(signal, 1);
    running.end()
}
