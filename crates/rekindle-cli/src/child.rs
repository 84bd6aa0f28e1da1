//! Runs this program as a child process: a [`Task`] as input, JSON as output.
//!
//! A peak belongs to a whole process, and a process that ran out of memory cannot continue. So separate measurements
//! run in separate processes, and so does planning, whose tables can be larger than a small model. A child reads its
//! task, a line of JSON, from standard input. The parent keeps this pipe open and writes nothing more: when the parent
//! ends, in whatever way, the system closes the pipe and the child ends, too.

use std::{
    borrow::Cow,
    env,
    fs::File,
    io::{self, BufRead, BufWriter, Read, Seek, Write},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use rekindle_plan::{Request, graph::Graph};
use serde::{Deserialize, Serialize};

use crate::{
    args::{CHILD, ProfileArgs, TrainArgs},
    error_document::{self, ErrorDocument},
    exit,
    failure::Failure,
    infeasible::Infeasible,
    launched, stop,
    terminal::{self, LookArgs},
};

/// The longest time between two looks at a child.
const POLL: Duration = Duration::from_millis(20);

/// The signal with which the system kills a process when memory runs out.
#[cfg(unix)]
const KILLED: i32 = 9;

/// What a child does.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task<'a> {
    /// Trains, and answers as `train` does.
    Train(Box<TrainArgs>),
    /// Measures a training step, and answers with its chain.
    Profile(ProfileArgs),
    /// Measures a training step, and answers with the smallest budget that some plan fits.
    SmallestBudget(ProfileArgs),
    /// Plans a recorded step.
    PlanGraph(Request, Cow<'a, Graph>),
}

impl Task<'_> {
    /// Starts a child with this task.
    pub fn start(&self, command: &mut Command) -> io::Result<Child> {
        let mut child = command.arg(CHILD).stdin(Stdio::piped()).spawn()?;
        if let Some(input) = &mut child.stdin {
            let mut input = BufWriter::new(input);
            let written = serde_json::to_writer(&mut input, &(terminal::look(), self));
            let written = written.map_err(io::Error::from);
            match written
                .and_then(|()| writeln!(input))
                .and_then(|()| input.flush())
            {
                // If the child has already ended, its exit code gives the reason.
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
                _ => {}
            }
        }
        Ok(child)
    }

    /// Whether failures are also reported as documents.
    fn answers_in_json(&self) -> bool {
        match self {
            Self::Train(args) => args.json,
            _ => true,
        }
    }
}

/// A command for this program, outside of the MPI job to which this process may belong.
pub fn this_program() -> io::Result<Command> {
    let mut command = env::current_exe().map(Command::new)?;
    for (name, _) in env::vars_os().filter(|(name, _)| launched::is_variable(name)) {
        command.env_remove(name);
    }
    Ok(command)
}

/// The task of this process. From here on this process ends with its parent.
pub fn take() -> Result<(LookArgs, Task<'static>), Failure> {
    let mut line = String::new();
    io::stdin()
        .lock()
        .read_line(&mut line)
        .map_err(Failure::other)?;
    let (look, task): (_, Task<'static>) = serde_json::from_str(&line).map_err(Failure::usage)?;
    error_document::expect(task.answers_in_json());
    let watch = thread::Builder::new().spawn(|| {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        std::process::exit(exit::INTERRUPTED);
    });
    watch.map_err(Failure::other)?;
    Ok((look, task))
}

/// The error of a child that gave no answer.
#[derive(Debug)]
pub enum Refused {
    /// Ctrl-C ended it.
    Interrupted,
    /// No plan fits its budget.
    Infeasible(Infeasible),
    /// Anything else: its exit code, and why.
    Failed(i32, String),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        let message = format!("another process of this program cannot be started: {error}");
        Self::Failed(exit::OTHER, message)
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Interrupted => Self::coded(exit::INTERRUPTED, "interrupted"),
            Refused::Infeasible(answer) => answer.error().into(),
            Refused::Failed(code, message) => Self::coded(code, message),
        }
    }
}

/// The answer to a task.
pub fn ask(task: &Task<'_>) -> Result<String, Refused> {
    answer(this_program()?, |command| task.start(command), stop::asked)
}

/// The answer to a task, awaited even if this process is asked to stop: otherwise it would do the work itself, in
/// memory that a budget bounds.
pub fn ask_to_the_end(task: &Task<'_>) -> Result<String, Refused> {
    answer(this_program()?, |command| task.start(command), || false)
}

/// The answer of a command line of this program.
pub fn run(command: Command) -> Result<String, Refused> {
    let start = |command: &mut Command| command.stdin(Stdio::null()).spawn();
    answer(command, start, stop::asked)
}

fn answer(
    mut command: Command,
    start: impl FnOnce(&mut Command) -> io::Result<Child>,
    stopped: fn() -> bool,
) -> Result<String, Refused> {
    // Files instead of pipes: reading two pipes needs threads, and the process may lack address space for them.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    command
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?);
    let mut interrupted = false;
    let status = wait(start(&mut command)?, stopped, |child| {
        interrupted = true;
        child.kill()
    })?;
    let (stdout, stderr) = (read(&mut stdout)?, read(&mut stderr)?);
    let code = code(status);
    // A terminal's Ctrl-C reaches the child as well, and may end it first.
    if interrupted || stopped() || code == exit::INTERRUPTED {
        return Err(Refused::Interrupted);
    }
    if code == exit::DONE {
        return Ok(stdout);
    }
    if let Ok(answer) = serde_json::from_str(&stdout) {
        return Err(Refused::Infeasible(answer));
    }
    let document = serde_json::from_str::<ErrorDocument>(&stdout);
    let message = document.map(|document| document.error);
    // A child that is killed, or aborts when memory runs out, writes none.
    let last = || {
        let mut lines = stderr.lines().filter(|line| !line.is_empty());
        lines.next_back().map(str::to_owned)
    };
    let message = message.ok().or_else(last);
    Err(Refused::Failed(
        code,
        message.unwrap_or_else(|| status.to_string()),
    ))
}

/// Waits for a child's end, and calls `stop` once if this process is asked to stop before.
pub fn wait(
    mut child: Child,
    stopped: fn() -> bool,
    stop: impl FnOnce(&mut Child) -> io::Result<()>,
) -> io::Result<ExitStatus> {
    let (mut stop, mut pause) = (Some(stop), Duration::from_millis(1));
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if let Some(stop) = stop.take_if(|_| stopped()) {
            stop(&mut child)?;
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

/// A child's exit code; if the system killed it, out of memory is assumed.
fn code(status: ExitStatus) -> i32 {
    #[cfg(unix)]
    if std::os::unix::process::ExitStatusExt::signal(&status) == Some(KILLED) {
        return exit::OUT_OF_MEMORY;
    }
    status.code().unwrap_or(exit::OTHER)
}
