//! Children of this program end when the process that started them is gone, however it ended.
//!
//! The parent holds the child's standard input open and writes nothing more to it. The system closes it with the
//! parent.

use std::{
    env, io,
    process::{Command, Stdio},
    thread,
};

use crate::exit;

/// Set for children whose standard input is there for this alone.
const VARIABLE: &str = "REKINDLE_CHILD";

/// Makes a command that is about to be spawned a child that [`watch_if_child`] knows.
pub fn watched(command: &mut Command) -> &mut Command {
    command.env(VARIABLE, "1").stdin(Stdio::piped())
}

/// The same for a command that reads its standard input first, and calls [`watch`] then.
pub fn watched_later(command: &mut Command) -> &mut Command {
    command.env_remove(VARIABLE).stdin(Stdio::piped())
}

/// Watches if this process is a child.
pub fn watch_if_child() {
    if env::var_os(VARIABLE).is_some() {
        watch();
    }
}

/// Ends this process when its standard input is closed.
pub fn watch() {
    thread::spawn(|| {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        std::process::exit(exit::INTERRUPTED);
    });
}
