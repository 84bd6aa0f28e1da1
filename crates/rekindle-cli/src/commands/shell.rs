//! `rekindle completions` and `rekindle man`: for shells and `man`, from the command line's own definition.

use clap::CommandFactory;

use crate::{
    args::{Cli, CompletionsArgs, ManArgs},
    failure::{Failure, Outcome},
    output,
};

/// Writes completions for a shell.
pub fn completions(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "rekindle", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}

/// Writes a page for the program and each command.
pub fn man(args: &ManArgs) -> Outcome {
    let refused = |error: std::io::Error| Failure::file(&args.folder, &error);
    std::fs::create_dir_all(&args.folder).map_err(refused)?;
    clap_mangen::generate_to(Cli::command(), &args.folder).map_err(refused)
}
