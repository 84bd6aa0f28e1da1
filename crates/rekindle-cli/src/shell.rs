//! Commands of this program as a shell takes them.

use std::borrow::Cow;

/// A command of this program as a shell takes it.
pub fn line(arguments: &[String]) -> String {
    let words: Vec<_> = arguments.iter().map(|word| quoted(word)).collect();
    format!("rekindle {}", words.join(" "))
}

/// A word as a shell takes it: `80%` as it is.
fn quoted(word: &str) -> Cow<'_, str> {
    match word.strip_suffix('%') {
        Some(number) if number.parse::<f64>().is_ok() => word.into(),
        _ => shell_words::quote(word),
    }
}
