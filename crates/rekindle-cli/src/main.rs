//! Rekindle's command line.
//!
//! | module | what it owns |
//! |---|---|
//! | [`args`] | the command line as typed |
//! | [`config`] | the config file: from text to checked settings |
//! | [`device`], [`size`] | devices and sizes as users write them |
//! | [`cache`], [`compiling`] | the cache between commands; the progress of compiling kernels |
//! | [`commands`] | one file for each command |
//! | [`estimate`](mod@estimate) | memory and time of a config, from shapes |
//! | [`ranks`], [`network`] | processes started by `mpirun`; the link between them, parsed and in words |
//! | [`progress`], [`summary`], [`table`], [`output`] | output during a run and after it |
//! | [`input`] | input files named by the user |
//! | [`plan_file`], [`track`], [`infeasible`] | plans and tracks as files; the JSON document if no plan fits |
//! | [`sweep`] | the rows of a sweep, and the record from which its table, files and picture are made |
//! | [`max`] | the largest size that fits |
//! | [`plot`], [`report`] | pictures; runs as one page |
//! | [`started`] | the command line of a run, for resuming it |
//! | [`child`] | runs this program as a child process that ends with this one |
//! | [`stop`] | signals that stop a command |
//! | [`failure`], [`exit`], [`terminal`], [`error_document`] | failures, their exit codes, and their output as text and JSON |

// A target of `fuzz` has this file as its root.
#![cfg_attr(
    fuzzing,
    no_main,
    expect(dead_code, reason = "nothing runs but what reads files")
)]

#[macro_use]
mod output;

mod args;
mod cache;
mod child;
mod commands;
mod compiling;
mod config;
mod device;
#[cfg(test)]
mod documents;
mod error_document;
mod estimate;
mod exit;
mod failure;
#[cfg(fuzzing)]
mod fuzz;
mod infeasible;
mod input;
mod max;
#[cfg(test)]
#[path = "../../rekindle-plan/tests/support/mutated.rs"]
mod mutated;
mod network;
mod plan_file;
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

use clap::Parser;

use args::{Cli, Command};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

fn main() {
    // Reading arguments already allocates memory.
    failure::report_exhausted_memory();
    // Before any thread starts.
    rekindle_train::device::prepare();
    let Cli { command, look } = Cli::try_parse().unwrap_or_else(|error| {
        ranks::leave_to_first(error.exit_code());
        if error.use_stderr() {
            error_document::write_usage(&error);
        }
        error.exit()
    });
    let task = matches!(command, Command::Child).then(child::take);
    terminal::set_up(match &task {
        Some(Ok((asked, _))) => *asked,
        _ => ranks::look(look),
    });
    failure::report_panics_as_bugs();
    if let Err(refusal) = ranks::check(&command).and_then(|()| failure::check_address_space()) {
        ranks::leave_to_first(refusal.code);
        failure::end(Err(refusal));
    }
    stop::listen();
    let result = match command {
        Command::Estimate(args) => commands::estimate::run(&args),
        Command::Train(args) => commands::train::run(*args),
        Command::Profile(args) => commands::profile::run(&args),
        Command::Plan(args) => commands::plan::run(&args),
        Command::Child => task.map_or(Ok(()), |task| commands::child::run(task?.1)),
        Command::Sweep(args) => commands::sweep::run(&args),
        Command::Max(args) => commands::max::run(&args),
        Command::Verify(args) => commands::verify::run(&args),
        Command::Report(args) => commands::report::run(&args),
        Command::Devices(args) => commands::devices::run(&args),
        Command::Init(args) => commands::init::run(&args),
        Command::Completions(args) => commands::shell::completions(&args),
        Command::Man(args) => commands::shell::man(&args),
    };
    failure::end(result);
}
