//! `rekindle completions`: for shells, from the command line's own definition.

use clap::CommandFactory;

use crate::{
    args::{Cli, CompletionsArgs},
    failure::Outcome,
    output,
};

/// Writes completions for a shell.
pub fn run(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "rekindle", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}
