//! Allocations that take a while, so that threads that work side by side hold at once what they hold at once at worst.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

/// Smaller blocks take no longer than usual.
const LEAST: usize = 4096;

/// How much longer a block takes: enough for a thread that has work to get a processor.
const WAIT: Duration = Duration::from_millis(1);

/// How many blocks take longer before all is as usual again.
const BLOCKS: usize = 400;

static LEFT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread gathers the others, and does not wait itself.
    static GATHERS: Cell<bool> = const { Cell::new(false) };
}

/// Has every other thread take a while for the blocks that it allocates, or no more. What threads that share a piece of
/// work need for their parts is then there at the same time, however busy the machine is: the most that the work can
/// take. Only for measuring memory: it takes up to 0.4 s of the threads' time.
pub fn gather_threads(on: bool) {
    GATHERS.set(on);
    LEFT.store(if on { BLOCKS } else { 0 }, Relaxed);
}

/// A block was allocated.
#[inline]
pub(crate) fn allocated(bytes: usize) {
    if LEFT.load(Relaxed) > 0 && bytes >= LEAST {
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
