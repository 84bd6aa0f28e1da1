//! How reports look: colour and line drawing on a terminal, plain text elsewhere.

use std::io::{self, IsTerminal};

use miette::MietteHandlerOpts;

/// Width of reports in files and pipes; a terminal has its own.
const WIDTH_ELSEWHERE: usize = 100;

/// Whether standard output shows colours: a terminal that can, and nobody who asked for none (https://no-color.org).
pub fn colours() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stdout().is_terminal() && !unwanted && !dumb
}

/// Makes every report fit the terminal, or the file that standard error goes to.
pub fn set_up_reports() {
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
        Box::new(options.build())
    }));
}

/// Width of prose in files and pipes, and the most that anyone reads with ease.
const PROSE: usize = 100;

/// A sentence in lines that fit the terminal; `indent` begins all but the first.
pub fn wrapped(text: &str, indent: &str) -> String {
    let width = comfy_table::Table::new().width().map_or(PROSE, usize::from);
    fold(text, indent, width.min(PROSE))
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
    use super::fold;

    #[test]
    fn prose_is_folded_at_words() {
        assert_eq!(fold("- one two three", "  ", 9), "- one two\n  three");
        assert_eq!(fold("incomprehensible", "  ", 4), "incomprehensible");
    }
}
