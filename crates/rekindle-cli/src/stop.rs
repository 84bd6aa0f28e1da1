//! Signals that ask the program to stop: SIGINT (Ctrl-C), SIGTERM, and SIGHUP unless it is ignored, as under `nohup`.
//!
//! A command that has nothing to save ends at once. Other commands call [`in_order`], and check [`asked`] between their
//! steps. In both cases the exit code is 130.

use std::{
    io,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{exit, launched};

/// Signals within this time after the first one belong to the same request: a terminal and `mpirun` may both send one.
const ONE_REQUEST: Duration = Duration::from_secs(1);

static ASKED: AtomicBool = AtomicBool::new(false);
/// The message of a command that stops cleanly, on the first signal.
static NOTICE: OnceLock<&str> = OnceLock::new();

/// Listens from now on. Until [`in_order`] is called, a signal ends the process at once.
pub fn listen() {
    let mut first = None;
    // Without a handler a signal still ends the process, but not cleanly.
    let _ = on_signal(move || received(&mut first));
}

/// From now on, a signal makes the command stop cleanly and prints `notice`; another one, later than [`ONE_REQUEST`],
/// ends the process at once.
pub fn in_order(notice: &'static str) {
    // It may be called at every step.
    let _ = NOTICE.set(notice);
}

/// Whether the command was asked to stop cleanly.
pub fn asked() -> bool {
    ASKED.load(Relaxed)
}

fn received(first: &mut Option<Instant>) {
    let notice = NOTICE.get();
    let end = |said: &str| {
        if launched::is_first() {
            complain!("\ninterrupted: {said}");
        }
        rekindle_train::device::seal_kernels();
        std::process::exit(exit::INTERRUPTED);
    };
    match (notice, &*first) {
        (None, _) => end("nothing was written"),
        (Some(notice), None) => {
            *first = Some(Instant::now());
            ASKED.store(true, Relaxed);
            note!("\n{notice}; press Ctrl-C again to stop at once");
        }
        (Some(_), Some(at)) if at.elapsed() < ONE_REQUEST => {}
        (Some(_), Some(_)) => end("stopped at once; the last results are not saved"),
    }
}

#[cfg(unix)]
fn on_signal(mut received: impl FnMut() + Send + 'static) -> io::Result<()> {
    use signal_hook::{
        consts::{SIGHUP, SIGINT, SIGTERM},
        iterator::Signals,
    };
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    if !hangups_are_ignored() {
        signals.add_signal(SIGHUP)?;
    }
    std::thread::Builder::new().spawn(move || signals.forever().for_each(|_| received()))?;
    Ok(())
}

#[cfg(not(unix))]
fn on_signal(received: impl FnMut() + Send + 'static) -> io::Result<()> {
    ctrlc::set_handler(received).map_err(io::Error::other)
}

/// Whether this process was started with SIGHUP ignored; known on Linux alone.
#[cfg(unix)]
fn hangups_are_ignored() -> bool {
    const FIELD: &str = "SigIgn:";
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix(FIELD));
    let ignored = field.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // A signal's bit is its number minus one.
    ignored.is_some_and(|mask| mask & (1 << (signal_hook::consts::SIGHUP - 1)) != 0)
}
