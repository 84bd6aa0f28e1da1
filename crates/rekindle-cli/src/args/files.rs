//! Arguments of commands that run no model: `report`, `runs`, `devices`, `init`, `completions` and `man`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::AnswerArgs;

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rekindle report runs/first\n  rekindle report runs/first --watch\n  rekindle report runs/first -o trace.json"
)]
pub struct ReportArgs {
    /// Folders written by `rekindle train -o` or `rekindle sweep -o`
    #[arg(value_name = "DIR", required = true)]
    pub runs: Vec<PathBuf>,
    /// Write the page to FILE (by default `report.html` in the folder). A FILE that ends in .json gets the trace of a step for
    /// https://ui.perfetto.dev
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
    /// Write the page again while the run goes on, until it ends or Ctrl-C; browsers reload it meanwhile
    #[arg(long, help_heading = "Output")]
    pub watch: bool,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rekindle runs\n  rekindle runs runs --json")]
pub struct RunsArgs {
    /// The folder that holds the runs' folders
    #[arg(value_name = "DIR", default_value = "runs")]
    pub folder: PathBuf,
    #[command(flatten)]
    pub answer: AnswerArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rekindle devices\n  rekindle devices --json")]
pub struct DevicesArgs {
    #[command(flatten)]
    pub answer: AnswerArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rekindle init\n  rekindle init text -o my.toml")]
pub struct InitArgs {
    /// Data to train on: synthetic (needs no files), text, mnist or cifar10
    #[arg(value_name = "DATA", default_value = "synthetic")]
    pub story: Story,
    /// Write the config to FILE, which must not exist
    #[arg(short, long, value_name = "FILE", default_value = "rekindle.toml")]
    pub output: PathBuf,
}

/// What a config to start from trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Story {
    /// A deep multilayer perceptron on random data.
    Synthetic,
    /// A byte-level language model on a text of one's own.
    Text,
    /// A multilayer perceptron on MNIST.
    Mnist,
    /// Convolutions on CIFAR-10.
    Cifar10,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  rekindle completions bash > ~/.local/share/bash-completion/completions/rekindle"
)]
pub struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  rekindle man ~/.local/share/man/man1")]
pub struct ManArgs {
    /// The folder for the pages
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}
