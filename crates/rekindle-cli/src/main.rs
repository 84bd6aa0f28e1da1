//! Rekindle's command line.
//!
//! | module | what it owns |
//! |---|---|
//! | [`args`] | command-line flags and their help |
//! | [`config`] | the config file: from text to checked settings |
//! | [`device`] | devices as users write them |
//! | [`compiling`] | where compiled kernels are kept; the log, and from it the progress of compiling |
//! | [`commands`] | one file for each command |
//! | [`launched`], [`ranks`], [`network`] | processes that `mpirun` has started; the link between them, as typed and in words |
//! | [`progress`], [`summary`], [`table`], [`output`] | what a person sees: notices during a run, and its result |
//! | [`input`] | files that a user names |
//! | [`track`] | tracks as files |
//! | [`sweep`] | what a sweep runs, and the record that its table, files and picture are made from |
//! | [`plot`], [`report`] | pictures (timeline, frontier) as SVG; a run or a sweep as one HTML page |
//! | [`started`] | how a run was started, kept in its folder |
//! | [`child`] | commands of this program in processes of their own, which end with this one |
//! | [`stop`] | signals that stop a command |
//! | [`failure`], [`exit`], [`terminal`] | what ends a command early, its exit code, and how it looks: for people and as JSON |

#[macro_use]
mod output;

mod args;
mod child;
mod commands;
mod compiling;
mod config;
mod device;
#[cfg(test)]
mod documents;
mod exit;
mod failure;
mod input;
mod launched;
#[cfg(test)]
#[path = "../../rekindle-plan/tests/support/mutated.rs"]
mod mutated;
mod network;
mod plot;
mod progress;
mod ranks;
mod report;
mod started;
mod stop;
mod summary;
mod sweep;
mod table;
mod terminal;
mod track;

use std::{process, thread};

use clap::FromArgMatches;

use args::{Cli, Command};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

/// Bytes of the stack of the thread that a command runs on: what systems usually give to a process's first thread. A
/// limit (`ulimit -s`) may give that one less than a command needs.
const STACK: usize = 8 << 20;

fn main() {
    // Reading arguments already allocates memory.
    failure::report_exhausted_memory();
    // Before any thread starts.
    rekindle_train::device::prepare();
    let thread = thread::Builder::new().name("main".into()).stack_size(STACK);
    match thread.spawn(run) {
        Ok(command) => drop(command.join()),
        // There are no addresses for a stack, which the command says.
        Err(_) => run(),
    }
    // A command ends the process, unless it panics, which is told by then.
    process::exit(exit::OTHER);
}

fn run() {
    let typed = Cli::program().try_get_matches();
    let typed = typed.and_then(|typed| Cli::from_arg_matches(&typed));
    let Cli { command, look } = typed.unwrap_or_else(|error| {
        ranks::leave_to_first(error.exit_code());
        if error.use_stderr() {
            failure::document::write_usage(&error);
        }
        error.exit()
    });
    terminal::set_up(ranks::look(look));
    compiling::listen();
    failure::report_panics_as_bugs();
    let ready = ranks::check(&command)
        .and_then(|()| failure::check_address_space())
        .and_then(|()| child::end_with_parent());
    if let Err(refusal) = ready {
        ranks::leave_to_first(refusal.code);
        failure::end(Err(refusal));
    }
    stop::listen();
    let result = match command {
        Command::Estimate(args) => commands::estimate::run(&args),
        Command::Train(args) => commands::train::run(*args),
        Command::Profile(args) => commands::profile::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Sweep(args) => commands::sweep::run(&args),
        Command::Max(args) => commands::max::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Report(args) => commands::report::run(&args),
        Command::Runs(args) => commands::runs::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Init(args) => commands::init::run(&args),
        Command::Completions(args) => commands::completions::run(&args),
        Command::Man(args) => commands::completions::man(&args),
    };
    failure::end(result);
}
