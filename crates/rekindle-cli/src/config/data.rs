//! `[data]`: the paths of its files, and errors if they are missing.

use std::path::{Path, PathBuf};

use rekindle_train::{FileError, data::settings::Source};

use crate::failure::Failure;

/// The files or the folder of a source.
pub fn paths(source: &mut Source) -> &mut [PathBuf] {
    match source {
        Source::Text { files, .. } => files,
        Source::Mnist { folder } | Source::Cifar10 { folder } => std::slice::from_mut(folder),
        Source::Synthetic { .. } => &mut [],
    }
}

/// Makes relative paths start at `base`, the config's folder.
pub fn start_at(base: &Path, source: &mut Source) {
    for path in paths(source) {
        *path = base.join(&path);
    }
}

/// The same source with its files in another folder; `None` for a source without files.
pub fn in_folder(source: &Source, folder: &Path) -> Option<Source> {
    let mut moved = source.clone();
    let text = matches!(source, Source::Text { .. });
    let paths = paths(&mut moved);
    for path in paths.iter_mut() {
        *path = match path.file_name().filter(|_| text) {
            Some(name) => folder.join(name),
            None => folder.to_path_buf(),
        };
    }
    (!paths.is_empty()).then_some(moved)
}

/// The failure of data that could not be opened.
pub fn failure(error: FileError, source: &Source) -> Failure {
    match error.is_of_system() {
        true => Failure::from(error).help(where_to_get(source)),
        false => error.into(),
    }
}

fn where_to_get(source: &Source) -> &'static str {
    match source {
        Source::Text { .. } | Source::Synthetic { .. } => {
            "paths in a config start at its folder; `--data-dir DIR` reads files of the same names from DIR"
        }
        Source::Mnist { .. } => {
            "get MNIST's four files (https://github.com/cvdfoundation/mnist), and set `folder` in [data] or \
             `--data-dir DIR`; `--data synthetic` runs without them"
        }
        Source::Cifar10 { .. } => {
            "unpack CIFAR-10's binary version (https://www.cs.toronto.edu/~kriz/cifar.html), and set `folder` in \
             [data] or `--data-dir DIR`; `--data synthetic` runs without it"
        }
    }
}
