//! `rekindle init`: a config to start from.

use std::{
    fs::OpenOptions,
    io::{ErrorKind, Write},
};

use crate::{
    args::{InitArgs, Story},
    failure::{Failure, Outcome},
};

impl Story {
    /// The config.
    fn config(self) -> &'static str {
        match self {
            Self::Synthetic => include_str!("../init/synthetic.toml"),
            Self::Text => include_str!("../init/text.toml"),
            Self::Mnist => include_str!("../init/mnist.toml"),
            Self::Cifar10 => include_str!("../init/cifar10.toml"),
        }
    }
}

/// Writes the config to a new file.
pub fn run(args: &InitArgs) -> Outcome {
    let path = &args.output;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                Failure::usage(format!("{} exists already", path.display()))
                    .help("name another file with `-o`")
            }
            _ => Failure::file(path, &error),
        })?;
    file.write_all(args.story.config().as_bytes())
        .map_err(|error| Failure::file(path, &error))?;
    let path = path.display();
    let first = match args.story {
        Story::Synthetic => "",
        Story::Text => " Put a text into `input.txt` first.",
        Story::Mnist | Story::Cifar10 => " Get the data set first: the config says where.",
    };
    note!("wrote {path}; to train, run `rekindle train {path}`.{first}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;
    use crate::{args::TrainArgs, config::load};

    #[test]
    fn every_story_is_a_valid_config() {
        let folder = tempfile::tempdir().expect("a folder");
        for story in Story::value_variants() {
            let output = folder.path().join(format!("{story:?}.toml"));
            let args = InitArgs {
                story: *story,
                output: output.clone(),
            };
            run(&args).expect("a config");
            let loaded = load(&TrainArgs {
                config: Some(output),
                ..TrainArgs::default()
            });
            assert!(loaded.is_ok(), "{story:?}: {:?}", loaded.err());
            // An existing file is not overwritten.
            assert!(run(&args).is_err());
        }
    }
}
