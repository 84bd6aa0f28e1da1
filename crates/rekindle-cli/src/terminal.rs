//! How reports look: colour and line drawing on a terminal, plain text elsewhere.

use std::{
    ffi::OsStr,
    io::{self, IsTerminal},
    sync::OnceLock,
};

use clap::{Args, ColorChoice};
use miette::MietteHandlerOpts;
use serde::{Deserialize, Serialize};

/// Width of reports in files and pipes; a terminal has its own.
const WIDTH_ELSEWHERE: usize = 100;

/// How much every command prints, and how it looks.
#[derive(Debug, Clone, Copy, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Messages")]
pub struct LookArgs {
    /// Print no progress and no notes: results and errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print more: `train` ends with the phases of the first steps as well
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// When to use colour: auto, always or never
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        hide_default_value = true
    )]
    #[serde(with = "typed")]
    pub color: ColorChoice,
}

/// A value as it is typed.
pub mod typed {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// What the command line says of the output, for the whole process.
static LOOK: OnceLock<LookArgs> = OnceLock::new();

/// Has everything that is printed from now on look as asked for. To be called once.
pub fn set_up(look: LookArgs) {
    let look = *LOOK.get_or_init(|| look);
    let terminal = io::stderr().is_terminal();
    // Fails only where a hook is set already, and then reports are just less pretty.
    let _ = miette::set_hook(Box::new(move |_| {
        let mut options = MietteHandlerOpts::new()
            .terminal_links(false)
            .context_lines(1)
            .break_words(false);
        // miette looks at NO_COLOR and the terminal's locale itself, but draws boxes into pipes as well.
        if !terminal {
            options = options.unicode(false).color(false).width(WIDTH_ELSEWHERE);
        }
        match look.color {
            ColorChoice::Auto => {}
            ColorChoice::Always => options = options.color(true),
            ColorChoice::Never => options = options.color(false),
        }
        Box::new(options.build())
    }));
}

/// What [`set_up`] was told.
pub fn look() -> LookArgs {
    LOOK.get().copied().unwrap_or_default()
}

/// Whether progress is a bar: on a terminal, unless nothing is wanted.
pub fn shows_bars() -> bool {
    io::stderr().is_terminal() && !quiet()
}

/// Whether nothing but results and errors is wanted.
pub fn quiet() -> bool {
    look().quiet
}

/// Whether more than the usual is wanted.
pub fn verbose() -> bool {
    look().verbose
}

/// Whether standard output shows colours: as asked for, else on a terminal that can, unless somebody asked for none
/// (https://no-color.org).
pub fn colours() -> bool {
    match look().color {
        ColorChoice::Always => return true,
        ColorChoice::Never => return false,
        ColorChoice::Auto => {}
    }
    let variable = |name| std::env::var_os(name);
    shows_colours(
        columns().is_some(),
        variable("NO_COLOR").as_deref(),
        variable("TERM").as_deref(),
    )
}

fn shows_colours(terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    let unwanted = no_color.is_some_and(|value| !value.is_empty());
    terminal && !unwanted && term.is_none_or(|term| term != "dumb")
}

/// Text from a file as it may be printed: control characters, which could rewrite what a terminal shows, are escaped.
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match is_command(character) {
            true => shown.extend(character.escape_unicode()),
            false => shown.push(character),
        }
    }
    shown
}

/// The same where places are counted in bytes: each byte of a control character becomes `?`.
pub fn in_place(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match is_command(character) {
            true => shown.extend(std::iter::repeat_n('?', character.len_utf8())),
            false => shown.push(character),
        }
    }
    shown
}

fn is_command(character: char) -> bool {
    character.is_control() && !matches!(character, '\n' | '\t' | '\r')
}

/// Width of text in files and pipes, and the most that anyone reads with ease.
const PROSE: usize = 80;

/// Characters in a line of the terminal that standard output is, if it is one. What `mpirun` puts in a terminal's place has no
/// width.
pub fn columns() -> Option<u16> {
    let width = comfy_table::Table::new().width();
    width.filter(|columns| *columns > 0)
}

/// Characters in a line of text.
pub fn width() -> usize {
    columns().map_or(PROSE, usize::from).min(PROSE)
}

/// Sentences in lines that fit; `indent` begins all but the first.
pub fn wrapped(text: &str, indent: &str) -> String {
    fold(text, indent, width())
}

fn fold(text: &str, indent: &str, width: usize) -> String {
    let (mut folded, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            folded.push('\n');
            folded.push_str(indent);
            column = indent.chars().count();
        } else if column > 0 {
            folded.push(' ');
            column += 1;
        }
        folded.push_str(word);
        column += length;
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::{fold, shows_colours};

    #[test]
    fn colours_need_a_terminal_that_shows_them_and_nobody_who_minds() {
        let (one, none, dumb) = (Some("1".as_ref()), Some("".as_ref()), Some("dumb".as_ref()));
        let xterm = Some("xterm-256color".as_ref());
        assert!(shows_colours(true, None, xterm));
        assert!(
            shows_colours(true, none, xterm),
            "an empty NO_COLOR asks for nothing"
        );
        assert!(!shows_colours(true, one, xterm));
        assert!(!shows_colours(true, None, dumb));
        assert!(!shows_colours(false, None, xterm));
    }

    #[test]
    fn prose_is_folded_at_words() {
        assert_eq!(fold("- one two three", "  ", 9), "- one two\n  three");
        assert_eq!(fold("incomprehensible", "  ", 4), "incomprehensible");
    }
}
