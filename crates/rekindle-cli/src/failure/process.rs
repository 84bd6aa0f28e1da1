//! Failures that end the process: memory that runs out, threads that do not start, panics.

use std::{
    io::Write,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use rekindle_plan::Bytes;
use rekindle_train::{
    device::{address_space_left, innermost_cause, seal_kernels},
    session::{Planned, holders},
};

use super::{Failure, Outcome, SMALLER, device_failure};
use crate::exit;

/// What to do where the system starts no thread.
const THREADS: &str = "raise `ulimit -v` or `ulimit -u`; `RAYON_NUM_THREADS=1` needs fewer threads";

/// The memory of a run's largest stages, and the current step, stored for reporting when nothing can be allocated.
static HOLDERS: OnceLock<String> = OnceLock::new();
static STEP: AtomicUsize = AtomicUsize::new(0);

/// Stores the memory of a run's plan, and the step that is next.
pub fn note_plan(planned: &Planned, step: usize) {
    let holders = holders(planned).into_iter();
    let holders = holders.map(|(name, bytes)| format!("`{name}` {bytes}"));
    // The text for the first plan is good enough.
    let _ = HOLDERS.set(holders.collect::<Vec<_>>().join(", "));
    note_step(step);
}

/// Notes the step that runs.
pub fn note_step(step: usize) {
    STEP.store(step, Relaxed);
}

/// Ends the process with a specific exit code when memory runs out: on the CPU reported by the allocator, on a GPU by
/// the panic of its queue, after which the process cannot continue.
pub fn report_exhausted_memory() {
    rekindle_alloc::on_exhausted(|bytes| {
        // Nothing may be allocated here, so the line is written piece by piece.
        let mut stderr = std::io::stderr().lock();
        let (step, in_use) = (STEP.load(Relaxed), rekindle_alloc::in_use());
        let _ = write!(
            stderr,
            "rekindle: out of memory in step {step}: could not allocate {bytes} bytes with {in_use} in use"
        );
        if let Some(holders) = HOLDERS.get() {
            let _ = write!(stderr, ". The stages that hold the most: {holders}");
        }
        let _ = writeln!(stderr, "; {SMALLER}");
        std::process::exit(exit::OUT_OF_MEMORY);
    });
}

/// Refuses to start if a limit of the address space leaves too little for stacks. Then the main stack cannot grow
/// (SIGSEGV), and the C library cannot register thread destructors (SIGABRT), and this program could not report either.
pub fn check_address_space() -> Outcome {
    /// For the main stack, which may grow to 8 MiB, and memory that libraries allocate at start.
    const PROCESS: u64 = 24 << 20;
    /// For a thread of the pool: its stack and what it allocates first.
    const THREAD: u64 = 3 << 20;
    let asked = std::env::var("RAYON_NUM_THREADS").ok();
    let threads = asked
        .and_then(|asked| asked.parse().ok())
        .filter(|threads| *threads > 0);
    let threads = threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |all| all.get() as u64));
    let needed = Bytes(PROCESS + threads.saturating_mul(THREAD));
    match address_space_left() {
        Some(left) if left < needed => {
            let message = format!(
                "the limit of the address space leaves {left} of memory, and {threads} threads need {needed} to start"
            );
            let help = "raise the limit (`ulimit -v`); `RAYON_NUM_THREADS=1` needs less";
            Err(Failure::coded(exit::OUT_OF_MEMORY, message).help(help))
        }
        _ => Ok(()),
    }
}

/// Whether a panic's message is that of a thread that the system did not start: both the standard library's and rayon's hold the
/// system's error.
fn speaks_of_threads(message: &str) -> bool {
    (message.contains("ThreadPoolBuildError") || message.contains("spawn thread"))
        && message.contains("kind: WouldBlock")
}

/// Reports a panic as one paragraph that says that it is a bug in Rekindle.
pub fn report_panics_as_bugs() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::env::var("RUST_BACKTRACE").is_ok_and(|value| value != "0") {
            default(panic);
        }
        let message = panic.payload_as_str().unwrap_or("no message");
        // The kernels compiled until now are complete.
        seal_kernels();
        if let Some(failure) = device_failure(message) {
            let help = failure.help.map(|help| format!("; {help}"));
            complain!("rekindle: {}{}", failure.message, help.unwrap_or_default());
            std::process::exit(failure.code);
        }
        let cause = innermost_cause(message);
        if speaks_of_threads(message) {
            complain!("rekindle: the system could not start a thread ({cause}); {THREADS}");
            std::process::exit(exit::OTHER);
        }
        let place = panic
            .location()
            .map(|place| format!(" at {}:{}", place.file(), place.line()))
            .unwrap_or_default();
        complain!(
            "rekindle: this is a bug, please report it with the command that you ran ({cause}{place}; \
             RUST_BACKTRACE=1 shows more)"
        );
        std::process::exit(exit::OTHER);
    }));
}
