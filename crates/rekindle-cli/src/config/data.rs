//! `[data]`: from TOML to [`DataSettings`], and what to do where the data is not there.

use std::path::{Path, PathBuf};

use rekindle_train::data::{
    DataError,
    error::Blame,
    settings::{DataSettings, Source, SyntheticTarget},
};

use super::{
    problem::Problem,
    reader::{Node, Section},
};
use crate::{exit, failure::Failure};

const DEFAULT_EVAL_SPLIT: f64 = 0.1;
const DEFAULT_SYNTHETIC_SAMPLES: usize = 10_000;

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Mnist,
    Cifar10,
    Synthetic,
}

/// Reads the section. Relative paths start at `base`, the config's folder.
pub fn read(section: &mut Section<'_>, base: &Path) -> Result<DataSettings, Problem> {
    let kind = section.require("type")?.choice(&[
        ("text", Kind::Text),
        ("mnist", Kind::Mnist),
        ("cifar10", Kind::Cifar10),
        ("synthetic", Kind::Synthetic),
    ])?;
    let source = match kind {
        Kind::Text => Source::Text {
            files: files(&section.require("files")?, base)?,
            window: section.or("window", 64, Node::size)?,
        },
        Kind::Mnist => Source::Mnist {
            folder: base.join(section.require("folder")?.text()?),
        },
        Kind::Cifar10 => Source::Cifar10 {
            folder: base.join(section.require("folder")?.text()?),
        },
        Kind::Synthetic => Source::Synthetic {
            shape: section.require("shape")?.sizes()?,
            vocab: section.get("vocab").map(|node| node.size()).transpose()?,
            target: target(&section.require("target")?)?,
            samples: section.or("samples", DEFAULT_SYNTHETIC_SAMPLES, Node::size)?,
            seed: section.or("seed", 0, Node::seed)?,
        },
    };
    let eval_split = section.or("eval_split", DEFAULT_EVAL_SPLIT, |node| {
        node.number("at least 0 and below 1", |share| {
            (0.0..1.0).contains(&share)
        })
    })?;
    Ok(DataSettings { source, eval_split })
}

fn files(node: &Node<'_>, base: &Path) -> Result<Vec<PathBuf>, Problem> {
    let files = match node.as_list() {
        None => vec![base.join(node.text()?)],
        Some(list) => list
            .iter()
            .map(|file| file.text().map(|file| base.join(file)))
            .collect::<Result<_, _>>()?,
    };
    if files.is_empty() {
        return Err(node.problem("at least one file"));
    }
    Ok(files)
}

/// `{ classes = 10 }` or `{ values = 1 }`, with or without its `type`.
fn target(node: &Node<'_>) -> Result<SyntheticTarget, Problem> {
    let mut section = node.section("`target`")?;
    let kind = section
        .get("type")
        .map(|kind| kind.choice(&[("classes", true), ("regression", false)]))
        .transpose()?;
    let (classes, values) = (section.get("classes"), section.get("values"));
    section.finish()?;
    match (kind, classes, values) {
        (None | Some(true), Some(classes), None) => Ok(SyntheticTarget::Classes {
            classes: classes.size()?,
        }),
        (None | Some(false), None, Some(values)) => Ok(SyntheticTarget::Regression {
            values: values.size()?,
        }),
        _ => Err(node.problem("either { classes = N } or { values = N }")),
    }
}

/// The same source with its files in another folder; `None` for a source without files.
pub fn in_folder(source: &Source, folder: &Path) -> Option<Source> {
    match source {
        Source::Text { files, window } => Some(Source::Text {
            files: files
                .iter()
                .map(|file| {
                    file.file_name()
                        .map_or_else(|| file.clone(), |name| folder.join(name))
                })
                .collect(),
            window: *window,
        }),
        Source::Mnist { .. } => Some(Source::Mnist {
            folder: folder.to_path_buf(),
        }),
        Source::Cifar10 { .. } => Some(Source::Cifar10 {
            folder: folder.to_path_buf(),
        }),
        Source::Synthetic { .. } => None,
    }
}

/// What to tell a user whose data could not be opened.
pub fn failure(error: DataError, source: &Source) -> Failure {
    let (code, help) = match (error.blame(), &error) {
        (Blame::System, _) => (exit::FILE_REFUSED, where_to_get(source)),
        (_, DataError::Gzip { .. } | DataError::Length { .. } | DataError::Empty { .. }) => {
            (exit::USAGE, "download the file again")
        }
        (_, DataError::Window { .. }) => (exit::USAGE, "use a smaller `window`, or a longer text"),
        (_, DataError::Share { .. }) => (
            exit::USAGE,
            "change `eval_split` in [data] (0 trains on everything), or use more samples",
        ),
        _ => return error.into(),
    };
    Failure::with_help(code, error, help)
}

fn where_to_get(source: &Source) -> &'static str {
    match source {
        Source::Text { .. } | Source::Synthetic { .. } => {
            "paths in a config start at the config's folder; \
             `--data-dir DIR` looks for files of the same names in DIR"
        }
        Source::Mnist { .. } => {
            "get MNIST's four files (https://github.com/cvdfoundation/mnist lists them; .gz is fine) and point \
             at their folder with `folder` in [data] or `--data-dir DIR`; `--data synthetic` runs without them"
        }
        Source::Cifar10 { .. } => {
            "get CIFAR-10's binary version (https://www.cs.toronto.edu/~kriz/cifar.html), unpack it, and point \
             at its folder with `folder` in [data] or `--data-dir DIR`; `--data synthetic` runs without it"
        }
    }
}
