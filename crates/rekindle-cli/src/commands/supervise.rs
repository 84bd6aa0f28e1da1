//! `rekindle train --supervise`: trains in a child process, and restarts it if it is lost.
//!
//! A process is lost if the system kills it, a failed allocation aborts it, a device becomes unusable for it, or memory
//! runs out and no smaller plan helps. The next process continues from the last snapshot, or from the start if there is
//! none, within a share of the lost plan's memory, or within the same budget if no plan fits that. The child is in a
//! separate process group: signals arrive here and are forwarded. A second signal ends this process at once, and the
//! child with it.

use std::{
    env, fs, io,
    path::Path,
    process::{Child, ExitStatus},
};

use rekindle::size::Size;
use rekindle_plan::Bytes;
use sysinfo::{Pid, ProcessesToUpdate, Signal, System};
use tempfile::NamedTempFile;

use crate::{
    args::{ScheduleArgs, Supervised, TrainArgs},
    child::{Task, this_program, wait},
    exit,
    failure::{Failure, Outcome},
    started::Started,
    stop,
};

/// Maximum number of restarts.
const RESTARTS: usize = 5;

/// Share of the lost plan's memory that the next plan may use.
const NEXT: f64 = 0.9;

/// Trains in a child. Ends this process with the child's exit code.
pub fn run(args: &TrainArgs) -> Outcome {
    let Some(folder) = args.output.as_ref().or(args.resume.as_ref()) else {
        return Err(Failure::usage(
            "`--supervise` needs a folder for the snapshots that it restarts from: add `-o RUN_DIR`",
        ));
    };
    stop::in_order("forwarding the signal");
    let note = NamedTempFile::new().map_err(|error| Failure::file(&env::temp_dir(), &error))?;
    let supervised = Supervised {
        note: note.path().to_owned(),
        tried_within_less: false,
        started: Started::now()?,
    };
    let mut within = match args.schedule.budget {
        Some(Size::Bytes(bytes)) => Some(bytes),
        _ => None,
    };
    let mut again = Again::First;
    let mut restart = 0;
    loop {
        restart += 1;
        let status = train(args, &supervised, again)?;
        if let (Some(exit::NO_PLAN), Again::Within(tried)) = (status.code(), again) {
            note!("no plan fits {tried}: the training continues within its former budget");
            again = Again::AsBefore;
            continue;
        }
        let Some(lost) = lost(status) else {
            std::process::exit(status.code().unwrap_or(exit::OTHER));
        };
        if restart > RESTARTS {
            let code = match status.code() {
                Some(exit::DEVICE_FAILED) => exit::OTHER,
                _ => exit::OUT_OF_MEMORY,
            };
            return Err(Failure::with_help(
                code,
                format!("the training was lost {restart} times"),
                format!(
                    "`rekindle train --resume {}` continues from the last snapshot",
                    folder.display()
                ),
            ));
        }
        // The memory of the lost process's plan; if it made none, the budget that it was given.
        let took = fs::read_to_string(note.path()).ok();
        let took = took.and_then(|text| text.trim().parse().ok()).map(Bytes);
        let from = match has_snapshot(folder) {
            true => "continues from its last snapshot",
            false => {
                remove_remains(folder);
                "starts over, because it has no snapshot yet"
            }
        };
        let how = match (took.or(within), again) {
            (Some(took), Again::First | Again::Within(_)) => {
                let took = within.map_or(took, |within| within.min(took));
                let next = Bytes((took.0 as f64 * NEXT) as u64);
                (within, again) = (Some(next), Again::Within(next));
                format!("within {next} instead of {took}")
            }
            _ => {
                again = Again::AsBefore;
                "within what it had before".into()
            }
        };
        note!("the training {lost}: it {from}, {how} (restart {restart} of {RESTARTS})");
    }
}

impl Supervised {
    /// Exit codes of a child after which it is restarted.
    pub fn goes_on_after(&self) -> &'static [i32] {
        match self.tried_within_less {
            true => &[exit::OUT_OF_MEMORY, exit::DEVICE_FAILED, exit::NO_PLAN],
            false => &[exit::OUT_OF_MEMORY, exit::DEVICE_FAILED],
        }
    }
}

/// How a child is started.
#[derive(Clone, Copy)]
enum Again {
    /// As it was typed.
    First,
    /// From the snapshot, within a smaller budget.
    Within(Bytes),
    /// From the snapshot, within the original budget.
    AsBefore,
}

/// The arguments of a child's training: from its snapshot if it has one, within another budget if given.
fn next(args: &TrainArgs, again: Again, supervised: Supervised) -> TrainArgs {
    let mut args = TrainArgs {
        supervise: false,
        supervised: Some(Supervised {
            tried_within_less: matches!(again, Again::Within(_)),
            ..supervised
        }),
        ..args.clone()
    };
    if let Again::First = again {
        return args;
    }
    if args.resume.is_none() && args.output.as_deref().is_some_and(has_snapshot) {
        args.resume = args.output.take();
    }
    if let Again::Within(budget) = again {
        args.plan = None;
        args.schedule = ScheduleArgs {
            budget: Some(Size::Bytes(budget)),
            ..ScheduleArgs::default()
        };
    }
    args
}

/// Whether a run's folder has a snapshot to continue from.
fn has_snapshot(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .into_iter()
        .any(|entry| entry.file_name().to_string_lossy().starts_with("snapshot"))
}

/// Removes the files of a run that has no snapshot.
fn remove_remains(folder: &Path) {
    for file in ["history.csv", "run.json"] {
        // The next process reports any problem.
        let _ = fs::remove_file(folder.join(file));
    }
}

/// Runs the training to its end.
fn train(args: &TrainArgs, supervised: &Supervised, again: Again) -> Result<ExitStatus, Failure> {
    let cannot = |error: io::Error| {
        Failure::other(format!(
            "another process of this program cannot be started: {error}"
        ))
    };
    // Remove what an earlier process has written.
    let note = &supervised.note;
    fs::write(note, "").map_err(|error| Failure::file(note, &error))?;
    let task = Task::Train(Box::new(next(args, again, supervised.clone())));
    let mut command = this_program().map_err(cannot)?;
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let child = task.start(&mut command).map_err(cannot)?;
    wait(child, stop::asked, interrupt).map_err(cannot)
}

fn interrupt(child: &mut Child) -> io::Result<()> {
    let pid = Pid::from_u32(child.id());
    let mut system = System::new();
    system.refresh_processes(ProcessesToUpdate::Some(&[pid]), true);
    let sent = system
        .process(pid)
        .and_then(|process| process.kill_with(Signal::Interrupt));
    if sent != Some(true) {
        // A system without such a signal, or a child that has just ended.
        let _ = child.kill();
    }
    Ok(())
}

/// How a process was lost, if less memory may help.
fn lost(status: ExitStatus) -> Option<String> {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        let name = match signal {
            6 => "aborted",
            7 | 11 => "crashed",
            9 => "was killed by the system, probably because memory ran out",
            _ => return None,
        };
        return Some(format!("{name} (signal {signal})"));
    }
    match status.code()? {
        exit::OUT_OF_MEMORY => Some("ran out of memory".into()),
        exit::DEVICE_FAILED => Some("lost its device".into()),
        _ => None,
    }
}
