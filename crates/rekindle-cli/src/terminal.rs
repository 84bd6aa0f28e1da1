//! How reports look: colour and line drawing on a terminal, plain text elsewhere.

use std::{
    io::{self, IsTerminal},
    sync::OnceLock,
};

use anstream::AutoStream;
use clap::{Args, ColorChoice};
use miette::MietteHandlerOpts;
use serde::{Deserialize, Serialize};
use textwrap::{Options, WordSeparator, WordSplitter};

/// Width of reports in files and pipes; a terminal has its own.
const WIDTH_ELSEWHERE: usize = 100;

/// How much every command prints, and how it looks.
#[derive(Debug, Clone, Copy, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Messages")]
pub struct LookArgs {
    /// Print no progress and no notes: results and errors only
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Print more details (`train`: memory by phase of the first steps)
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
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never,
    }
}

/// Text from a file as it may be printed: control characters, which could rewrite what a terminal shows, are escaped.
pub fn shown(text: &str) -> String {
    replaced(text, |character| character.escape_unicode().to_string())
}

/// The same where places are counted in bytes: each byte of a control character becomes `?`.
pub fn in_place(text: &str) -> String {
    replaced(text, |character| "?".repeat(character.len_utf8()))
}

fn replaced(text: &str, by: impl Fn(char) -> String) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() && !matches!(character, '\n' | '\t' | '\r') {
            true => shown += &by(character),
            false => shown.push(character),
        }
    }
    shown
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
    let options = Options::new(width())
        .subsequent_indent(indent)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(text, options)
}
