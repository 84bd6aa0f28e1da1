//! The command line as typed.
//!
//! | module | what it owns |
//! |---|---|
//! | [`shared`] | arguments that several commands have, and how their words are read |
//! | [`train`] | `train` |
//! | [`plan`] | `estimate`, `profile`, `plan` |
//! | [`sweep`] | `sweep`, `max`, `verify` |
//! | [`files`] | `report`, `runs`, `devices`, `init`, `completions` |

mod files;
mod plan;
mod shared;
mod sweep;
mod train;

use clap::{Arg, CommandFactory, Parser, Subcommand};

pub use self::{
    files::{CompletionsArgs, DevicesArgs, InitArgs, ManArgs, ReportArgs, RunsArgs, Story},
    plan::{EstimateArgs, PlanArgs, ProfileArgs},
    shared::{AnswerArgs, ConfigArgs, MeasureArgs, ReplaceArgs, ScheduleArgs},
    sweep::{Lever, MaxArgs, SweepArgs, VerifyArgs},
    train::{TrainArgs, line, words},
};
use crate::terminal::LookArgs;

/// Train sequential models that do not fit in memory.
///
/// Gradient checkpointing within a memory budget: some activations are dropped in the forward pass and recomputed in the
/// backward pass. Loss and gradients are the plain run's.
#[derive(Debug, Parser)]
#[command(
    name = "rekindle",
    version,
    max_term_width = 100,
    hide_possible_values = true,
    after_help = "Examples:\n  rekindle init\n  rekindle train rekindle.toml\n  rekindle train configs/deep-linear.toml --budget 40MiB -o runs/first\n  rekindle report runs/first\n\nExit codes: 0 done; 1 any other error; 2 bad usage, config or input file; \
3 no plan fits the budget; 4 out of memory; 5 a file cannot be read or written; 6 a loss or \
gradient is not finite; 130 interrupted."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub look: LookArgs,
}

/// The arguments that `-h` shows, of whichever command has them; `--help` shows all.
const USUAL: &str = "config batch segments budget plan steps device weights compare track output resume json \
    chain explain frontier budgets vary slowdown confirm runs folder story shell";

impl Cli {
    /// The command line as it is understood.
    pub fn program() -> clap::Command {
        let short = |arg: Arg| {
            let usual = USUAL.split(' ').any(|name| arg.get_id() == name);
            arg.hide_short_help(!usual)
        };
        let program = Self::command().mut_args(short);
        program.mut_subcommands(|command| command.mut_args(short))
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Count a training's memory from shapes, and say whether it fits, without running it
    Estimate(EstimateArgs),
    /// Train a model within a memory budget, and compare predictions with measurements
    Train(Box<TrainArgs>),
    /// Measure the memory and time of each stage of a model
    Profile(ProfileArgs),
    /// Find the fastest schedule within a budget, and explain it
    Plan(PlanArgs),
    /// Run a config under many schedules, and show time against memory: table, files, plot
    Sweep(SweepArgs),
    /// Find the largest batch or depth that fits, with and without checkpointing
    Max(MaxArgs),
    /// Check that checkpointed training computes the same numbers as plain training
    Verify(VerifyArgs),
    /// Make a self-contained HTML page of a run or a sweep
    Report(ReportArgs),
    /// List runs: when, config, budget, peak, step time, loss, state
    Runs(RunsArgs),
    /// List the devices of this machine, and say why others cannot be used
    Devices(DevicesArgs),
    /// Write a commented config to start from
    Init(InitArgs),
    /// Write shell completions to standard output
    Completions(CompletionsArgs),
    /// Write a man page for each command
    Man(ManArgs),
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// What people do with a command, and what it cannot run without.
    #[test]
    fn short_help_shows_a_dozen_options() {
        let mut program = Cli::program();
        program.build();
        let commands = program.get_subcommands();
        let mut known = HashSet::new();
        for command in commands.filter(|command| command.get_name() != "help") {
            known.extend(command.get_arguments().map(|arg| arg.get_id().as_str()));
            let short = |arg: &&Arg| !arg.is_hide_short_help_set();
            let mut needed = command.get_arguments().filter(|arg| arg.is_required_set());
            assert!(needed.all(|arg| short(&arg)), "{}", command.get_name());
            let shown = command.get_arguments().filter(short).count();
            assert!(shown <= 14, "{}: {shown}", command.get_name());
        }
        assert!(USUAL.split(' ').all(|name| known.contains(name)));
    }

    /// Every example in a help text is a valid command line.
    #[test]
    fn examples_are_understood() {
        let mut examples = 0;
        let program = Cli::command();
        for command in program.get_subcommands().chain([&program]) {
            let help = command.get_after_help().expect("examples").to_string();
            assert!(help.starts_with("Examples:\n"), "{help}");
            for line in help.lines().filter_map(|line| line.strip_prefix("  ")) {
                let words = line.split_whitespace().take_while(|word| *word != ">");
                let parsed = Cli::try_parse_from(words);
                assert!(parsed.is_ok(), "{line}: {parsed:?}");
                examples += 1;
            }
        }
        assert!(examples >= 20, "{examples}");
    }

    /// Commands are left whole: they are copied.
    #[test]
    fn help_fits_80_columns() {
        let mut program = Cli::program().term_width(80);
        program.build();
        let mut helps = vec![program.render_long_help()];
        let commands = program.get_subcommands_mut();
        for command in commands.filter(|command| command.get_name() != "help") {
            helps.extend([command.render_help(), command.render_long_help()]);
        }
        for help in helps.iter().map(ToString::to_string) {
            for line in help.lines().filter(|line| !line.starts_with("  rekindle ")) {
                assert!(line.trim_end().chars().count() <= 80, "{line}");
            }
        }
    }
}
