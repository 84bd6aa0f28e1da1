//! Problems in a config, with their positions.

use std::{ops::Range, path::Path};

use miette::{Diagnostic, NamedSource, SourceSpan};

use crate::terminal;

/// A problem at a position in a config, without the config's text.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// What is wrong.
    pub message: String,
    /// A few words beside the marked place.
    pub label: String,
    /// The place, in bytes.
    pub span: Range<usize>,
    /// What to do.
    pub help: Option<String>,
}

impl Problem {
    /// A problem at a place.
    pub fn new(message: impl Into<String>, label: impl Into<String>, span: Range<usize>) -> Self {
        Self {
            message: message.into(),
            label: label.into(),
            span,
            help: None,
        }
    }

    /// Adds what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Joins the problem with the text that it is in.
    pub fn in_file(self, path: &Path, text: &str) -> ConfigError {
        ConfigError {
            message: terminal::shown(&self.message),
            source_code: NamedSource::new(path.display().to_string(), terminal::in_place(text)),
            span: self.span.into(),
            label: terminal::shown(&self.label),
            help: self.help.as_deref().map(terminal::shown),
        }
    }
}

/// Something wrong in a config, shown with its lines.
#[derive(Debug, Diagnostic, thiserror::Error)]
#[error("{message}")]
pub struct ConfigError {
    message: String,
    #[source_code]
    source_code: NamedSource<String>,
    #[label("{label}")]
    span: SourceSpan,
    label: String,
    #[help]
    help: Option<String>,
}

/// The word in `known` of which `word` is probably a typing error.
pub fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| {
            let slip = word.len() > 2 && strsim::osa_distance(word, candidate) == 1;
            let likeness = strsim::jaro_winkler(word, candidate);
            (if slip { 1.0 } else { likeness }, candidate)
        })
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

/// `a, b or c`.
pub fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}
