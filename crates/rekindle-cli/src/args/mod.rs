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

use clap::{Parser, Subcommand};

pub use self::{
    files::{CompletionsArgs, DevicesArgs, InitArgs, ReportArgs, RunsArgs, Story},
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
        let mut program = Cli::command().term_width(80);
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
