//! The bytes in use, and their peak.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::arena;

pub(crate) static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// The largest of the peaks before resets.
static EARLIER_PEAKS: AtomicUsize = AtomicUsize::new(0);

/// Whether a [`CountingAllocator`](crate::CountingAllocator) is the process's allocator. If not, all other numbers here are
/// zero.
#[must_use]
pub fn installed() -> bool {
    // A running Rust program has allocated memory, so a zero peak means that the allocator is not installed.
    PEAK.load(Relaxed) > 0
}

/// Bytes allocated and not yet freed.
#[must_use]
pub fn in_use() -> usize {
    IN_USE.load(Relaxed)
}

/// The largest [`in_use`] since the last [`reset_peak`].
#[must_use]
pub fn peak() -> usize {
    PEAK.load(Relaxed)
}

/// The largest [`in_use`] since the process started.
#[must_use]
pub fn lifetime_peak() -> usize {
    EARLIER_PEAKS.load(Relaxed).max(peak())
}

/// Starts a new peak at the bytes in use now.
pub fn reset_peak() {
    let earlier = PEAK.swap(IN_USE.load(Relaxed), Relaxed);
    EARLIER_PEAKS.fetch_max(earlier, Relaxed);
}

/// A block of one size became one of another; a size of 0 is none.
#[inline]
pub(crate) fn resized(size: usize, new_size: usize) {
    if new_size < size {
        IN_USE.fetch_sub(size - new_size, Relaxed);
        return;
    }
    let more = new_size - size;
    let now = IN_USE.fetch_add(more, Relaxed) + more;
    if now == more {
        arena::one();
    }
    if now > PEAK.load(Relaxed) {
        PEAK.fetch_max(now, Relaxed);
    }
}
