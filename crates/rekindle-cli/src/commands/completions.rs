//! `rekindle completions` and `rekindle man`: for shells and `man`, from the command line's own definition.

use clap::CommandFactory;
use rekindle_train::replace::create_folder;

use crate::{
    args::{Cli, CompletionsArgs, ManArgs},
    failure::{Failure, Outcome},
    output,
};

/// Writes completions for a shell.
pub fn run(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "rekindle", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}

/// Writes a page for the program and one for each command.
pub fn man(args: &ManArgs) -> Outcome {
    let written = create_folder(&args.folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), &args.folder));
    written.map_err(|error| Failure::file(&args.folder, &error))
}
