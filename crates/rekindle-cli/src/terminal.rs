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
