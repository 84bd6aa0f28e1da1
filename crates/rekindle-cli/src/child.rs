//! This program, run again.
//!
//! A peak is a process's, and a process that ran out of memory has no next row: what is to be measured by itself runs in
//! a process of its own. The child's output is caught, and it ends when this one is interrupted or gone.

use std::{
    env,
    ffi::OsString,
    io::{self, Read},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use tempfile::TempDir;

use crate::{cache, exit, failure::Failure, parent, stop};

/// Time between two looks at a child.
const POLL: Duration = Duration::from_millis(20);

/// The signal that a system ends a process with when its memory runs out.
#[cfg(unix)]
const KILLED: i32 = 9;

/// Runs children that find each other's profiles.
pub struct Children {
    /// Where profiles are kept for as long as the children run, if nowhere else.
    cache: Option<TempDir>,
}

/// A child that ended by itself.
#[derive(Debug)]
pub struct Ended {
    status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    stderr: String,
}

/// A child that gave nothing.
#[derive(Debug)]
pub enum ChildError {
    /// Ctrl-C ended it.
    Interrupted,
    /// The system refused something.
    System(io::Error),
}

impl From<io::Error> for ChildError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<ChildError> for Failure {
    fn from(error: ChildError) -> Self {
        match error {
            ChildError::Interrupted => Self {
                code: exit::INTERRUPTED,
                report: miette::miette!("interrupted"),
            },
            ChildError::System(error) => {
                Self::other(format!("this program cannot be run again: {error}"))
            }
        }
    }
}

impl Children {
    /// Children that keep profiles where this process would, or in a folder that goes away with this value.
    pub fn new() -> Result<Self, Failure> {
        let folder = match cache::profiles(false) {
            Some(_) => None,
            None => {
                Some(tempfile::tempdir().map_err(|error| Failure::file(&env::temp_dir(), &error))?)
            }
        };
        Ok(Self { cache: folder })
    }

    /// Runs one to its end.
    pub fn run(&self, arguments: &[OsString]) -> Result<Ended, ChildError> {
        let mut command = Command::new(env::current_exe()?);
        parent::watched(&mut command)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(cache) = &self.cache {
            command.env(cache::FOLDER_VARIABLE, Path::new(cache.path()));
        }
        let mut child = command.spawn()?;
        // Both at once, or a child that fills one pipe would wait for ever.
        let stdout = child.stdout.take().map(read);
        let stderr = child.stderr.take().map(read);
        let mut interrupted = false;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if stop::asked() && !interrupted {
                interrupted = true;
                child.kill()?;
            }
            thread::sleep(POLL);
        };
        let text = |reader: Option<thread::JoinHandle<String>>| {
            reader
                .and_then(|reader| reader.join().ok())
                .unwrap_or_default()
        };
        // A terminal's Ctrl-C reaches the child as well, and may end it first.
        if interrupted || stop::asked() {
            return Err(ChildError::Interrupted);
        }
        Ok(Ended {
            status,
            stdout: text(stdout),
            stderr: text(stderr),
        })
    }
}

fn read(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is still worth showing.
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Ended {
    /// Its exit code; one that the system killed ran out of memory, as far as anybody can tell.
    pub fn code(&self) -> i32 {
        #[cfg(unix)]
        if std::os::unix::process::ExitStatusExt::signal(&self.status) == Some(KILLED) {
            return exit::OUT_OF_MEMORY;
        }
        self.status.code().unwrap_or(exit::OTHER)
    }

    /// What it complained of, in one line.
    pub fn complaint(&self) -> String {
        let complaint = complaint(&self.stderr);
        if complaint.is_empty() {
            return self.status.to_string();
        }
        complaint
    }
}

/// The last report in what was written to standard error: its message without help, or the last line.
fn complaint(stderr: &str) -> String {
    let mut lines: Vec<&str> = stderr.lines().map(str::trim).collect();
    lines.retain(|line| !line.is_empty());
    let Some(start) = lines.iter().rposition(|line| line.starts_with("x ")) else {
        let last = lines.last().copied().unwrap_or_default();
        return last.trim_start_matches("rekindle: ").to_owned();
    };
    let report = lines[start..]
        .iter()
        .take_while(|line| !line.starts_with("help:"))
        .map(|line| line.trim_start_matches("x ").trim_start_matches("| "));
    report.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_told_in_one_line_without_its_help() {
        let report = "on cpu (x)\nwarning: y\n  x no plan fits 3 bytes, and this line is\n  | long\n  help: try 4\n";
        assert_eq!(
            complaint(report),
            "no plan fits 3 bytes, and this line is long"
        );
        assert_eq!(
            complaint("measured\nrekindle: out of memory: 5 bytes\n"),
            "out of memory: 5 bytes"
        );
        assert_eq!(complaint(""), "");
    }
}
