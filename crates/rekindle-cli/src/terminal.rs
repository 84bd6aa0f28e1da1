//! The style of reports: colour and line drawing on a terminal, plain text elsewhere.

use std::{
    io::{self, IsTerminal},
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use clap::{Args, ColorChoice};
use indicatif::{ProgressBar, ProgressStyle, WeakProgressBar};
use miette::MietteHandlerOpts;
use textwrap::{Options, WordSeparator, WordSplitter};

/// Width of reports in files and pipes; a terminal has its own.
const WIDTH_ELSEWHERE: usize = 100;

/// How much every command prints, and how it looks.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Messages")]
pub struct LookArgs {
    /// Print no progress and no notes: results and errors only
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// When to use colour: auto, always or never
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,
}

/// The output options of the command line, for the whole process.
static LOOK: OnceLock<LookArgs> = OnceLock::new();

/// Sets the style of all output from now on. Call this once.
pub fn set_up(look: LookArgs) {
    let look = *LOOK.get_or_init(|| look);
    let terminal = io::stderr().is_terminal();
    // Fails only if a hook is already set, and then reports are only less readable.
    let _ = miette::set_hook(Box::new(move |_| {
        let mut options = MietteHandlerOpts::new()
            .terminal_links(false)
            .context_lines(1)
            .break_words(false);
        // miette itself checks NO_COLOR and the terminal's locale, but also draws boxes into pipes.
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
fn look() -> LookArgs {
    LOOK.get().copied().unwrap_or_default()
}

/// The last bar, as long as it is drawn.
static BAR: Mutex<Option<WeakProgressBar>> = Mutex::new(None);

/// A bar that shows progress: on a terminal, unless nothing is wanted.
pub fn bar(style: ProgressStyle) -> Option<ProgressBar> {
    if !io::stderr().is_terminal() || quiet() {
        return None;
    }
    let bar = ProgressBar::new(0).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.downgrade());
    Some(bar)
}

/// Writes lines without tearing a bar.
pub fn beside_bar(write: impl FnOnce()) {
    let last = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let bar = last.as_ref().and_then(WeakProgressBar::upgrade);
    match bar.filter(|bar| !bar.is_finished()) {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Whether only results and errors are printed.
pub fn quiet() -> bool {
    look().quiet
}

/// Text from a file, safe for printing: control characters and marks of direction, which could make it look like another text,
/// are escaped.
pub fn shown(text: &str) -> String {
    replaced(text, |character| character.escape_unicode().to_string())
}

/// The same with unchanged byte positions: each byte of a control character becomes `?`.
pub fn in_place(text: &str) -> String {
    replaced(text, |character| "?".repeat(character.len_utf8()))
}

fn replaced(text: &str, by: impl Fn(char) -> String) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let safe = match character {
            '\n' | '\t' => true,
            '\r' => characters.peek() == Some(&'\n'),
            _ => !character.is_control() && !turns(character),
        };
        match safe {
            true => shown.push(character),
            false => shown += &by(character),
        }
    }
    shown
}

/// Whether a character changes the direction of text.
fn turns(character: char) -> bool {
    matches!(character as u32, 0x61c | 0x200e..=0x200f | 0x202a..=0x202e | 0x2066..=0x2069)
}

/// Width of text in files and pipes, and the most that anyone reads with ease.
const PROSE: usize = 80;

/// Characters in a line of the terminal on standard output, if it is one. Under `mpirun` the terminal may have no
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
