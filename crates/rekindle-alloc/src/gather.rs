//! Delays allocations, so that threads that work in parallel hold their memory at the same time, as in the worst case.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

/// Smaller blocks are not delayed.
const LEAST: usize = 4096;

/// The delay per block: long enough for another thread with work to be scheduled.
const WAIT: Duration = Duration::from_millis(1);

/// Number of blocks to delay.
const BLOCKS: usize = 400;

static LEFT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread gathers the others, and is not delayed itself.
    static GATHERS: Cell<bool> = const { Cell::new(false) };
}

/// Turns the delay of all other threads' allocations on or off. While on, threads that share a piece of work hold the
/// memory for their parts at the same time, however busy the machine is, so that the largest possible peak is measured.
/// Only for measuring memory: it takes up to 0.4 s of the threads' time.
pub fn gather_threads(on: bool) {
    GATHERS.set(on);
    LEFT.store(if on { BLOCKS } else { 0 }, Relaxed);
}

/// A block was allocated, unless it is null.
#[inline]
pub(crate) fn allocated(block: *mut u8, bytes: usize) {
    if LEFT.load(Relaxed) > 0 && bytes >= LEAST && !block.is_null() {
        wait();
    }
}

#[cold]
fn wait() {
    let taken = LEFT.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
    if taken.is_ok() && !GATHERS.get() {
        thread::sleep(WAIT);
    }
}
