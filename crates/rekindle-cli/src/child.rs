//! Runs commands of this program in other processes, and reads what they write.
//!
//! A peak belongs to a whole process, and a process that ran out of memory cannot continue. So separate measurements
//! run in separate processes, and so does planning, whose tables can be larger than a small model. Such a process ends
//! [with the one that started it](end_with_parent).

use std::{
    env,
    fs::File,
    io::{self, BufWriter, Read, Seek, Write},
    process::{self, Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use serde::de::DeserializeOwned;

use crate::{
    args::{TrainArgs, words},
    exit,
    failure::{Failure, InfeasibleDocument, Outcome, advised, document::ErrorDocument},
    launched, stop, terminal,
};

/// Names the process of this program that started this one.
const PARENT: &str = "REKINDLE_PARENT";

/// The longest time between two looks at another process.
const POLL: Duration = Duration::from_millis(20);

/// What a line that warns begins with.
const WARNING: &str = "warning: ";

/// The signal with which the system kills a process when memory runs out.
#[cfg(unix)]
const KILLED: i32 = 9;

/// Ends this process as soon as the process of this program that started it has ended, in whatever way. No effect if it
/// was started otherwise, and on systems other than Unix.
pub fn end_with_parent() -> Outcome {
    #[cfg(unix)]
    if let Some(parent) = env::var(PARENT).ok().and_then(|id| id.parse::<u32>().ok()) {
        let watch = thread::Builder::new().spawn(move || {
            while std::os::unix::process::parent_id() == parent {
                thread::sleep(POLL);
            }
            process::exit(exit::INTERRUPTED);
        });
        watch.map_err(Failure::other)?;
    }
    Ok(())
}

/// A command of this program, outside of the MPI job to which this process may belong.
fn command(words: &[String]) -> io::Result<Command> {
    let mut command = env::current_exe().map(Command::new)?;
    for (name, _) in env::vars_os().filter(|(name, _)| launched::is_variable(name)) {
        command.env_remove(name);
    }
    command.args(words).env(PARENT, process::id().to_string());
    Ok(command)
}

/// How a command ended.
pub struct Ended {
    /// Its exit code; if the system killed it, out of memory is assumed.
    pub code: i32,
    status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    stderr: String,
}

/// Runs a command of this program whose standard input `write` writes. It is killed once `stopped`.
pub fn run(
    words: &[String],
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    stopped: fn() -> bool,
) -> io::Result<Ended> {
    // Files instead of pipes: reading two pipes needs threads, and the process may lack address space for them.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command(words)?
        .stdin(Stdio::piped())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .spawn()?;
    if let Some(stdin) = child.stdin.take() {
        let mut stdin = BufWriter::new(stdin);
        match write(&mut stdin).and_then(|()| stdin.flush()) {
            // If the child has already ended, its exit code gives the reason.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    let status = wait(child, stopped)?;
    Ok(Ended {
        code: code(status),
        status,
        stdout: read(&mut stdout)?,
        stderr: read(&mut stderr)?,
    })
}

/// The document that a command of this program writes for a training. Its warnings are shown.
pub fn ask<T: DeserializeOwned>(command: &str, training: &TrainArgs) -> Result<T, Failure> {
    let words = words(command, training)?;
    let ended = run(&words, |_| Ok(()), stop::asked).map_err(|error| {
        Failure::other(format!(
            "another process of this program cannot be started: {error}"
        ))
    })?;
    // A terminal's Ctrl-C reaches the child as well, and may end it first.
    if stop::asked() || ended.code == exit::INTERRUPTED {
        return Err(Failure::coded(exit::INTERRUPTED, "interrupted"));
    }
    if ended.code == exit::DONE {
        let lines = ended.stderr.lines();
        for warning in lines.filter(|line| line.starts_with(WARNING)) {
            note!("{}", terminal::shown(warning));
        }
        return serde_json::from_str(&ended.stdout).map_err(Failure::other);
    }
    if let Ok(document) = serde_json::from_str::<InfeasibleDocument>(&ended.stdout) {
        let refused = document.infeasible;
        let smallest = advised(refused.smallest_of_all);
        let budget = refused.budget;
        let said = format!("no plan fits {budget}; the smallest budget is {smallest}");
        return Err(Failure {
            infeasible: Some(Box::new(refused)),
            ..Failure::coded(ended.code, said)
        });
    }
    if let Ok(document) = serde_json::from_str::<ErrorDocument>(&ended.stdout) {
        return Err(document.failure());
    }
    // A child that is killed, or aborts when memory runs out, writes none.
    let mut lines = ended.stderr.lines().filter(|line| !line.is_empty());
    let last = lines.next_back().map(str::to_owned);
    let message = last.unwrap_or_else(|| ended.status.to_string());
    Err(Failure::coded(ended.code, message))
}

/// Waits for a child's end, and kills it once `stopped`.
fn wait(mut child: Child, stopped: fn() -> bool) -> io::Result<ExitStatus> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stopped() {
            child.kill()?;
        }
        thread::sleep(pause);
        pause = POLL.min(pause * 2);
    }
}

/// The whole of a file that was written.
fn read(file: &mut File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn code(status: ExitStatus) -> i32 {
    #[cfg(unix)]
    if std::os::unix::process::ExitStatusExt::signal(&status) == Some(KILLED) {
        return exit::OUT_OF_MEMORY;
    }
    status.code().unwrap_or(exit::OTHER)
}
