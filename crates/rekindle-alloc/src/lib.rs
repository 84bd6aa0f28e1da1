//! A global allocator that counts: exact bytes in use, and their peak.
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
//!
//! let before = rekindle_alloc::in_use();
//! let buffer = vec![0u8; 1 << 20];
//! assert!(rekindle_alloc::in_use() >= before + (1 << 20));
//! # drop(buffer);
//! ```
//!
//! The requested bytes ([`Layout::size`]) are counted, over all threads of the process, without the system allocator's
//! rounding and free lists. Growing a block in place counts only the difference. Each allocation costs three atomic
//! operations.
//!
//! glibc's allocator is configured to keep freed blocks of up to 32 MiB for later allocations. Otherwise it would
//! return memory to the system and request it again, page by page, several times in a training step with a tight
//! budget.
//!
//! Files: `reserve.rs` keeps memory for an allocation that fails, `keep.rs` configures glibc's allocator, `gather.rs`
//! makes threads hold their memory at the same time.
//!
//! `unsafe` is what the trait it implements demands; beside it only `rekindle-cuda`, which calls the driver, has any.

#![deny(missing_docs)]

mod gather;
mod keep;
mod reserve;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

pub use gather::gather_threads;
pub use reserve::{Failure, drop_reserve, failure, keep_reserve, set_limit};

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// The largest of the peaks before resets.
static EARLIER_PEAKS: AtomicUsize = AtomicUsize::new(0);

/// The system allocator, counted. Install it with `#[global_allocator]`.
pub struct CountingAllocator;

/// Whether a [`CountingAllocator`] is the process's allocator. If not, all other numbers here are zero.
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

/// Sets a hook that is called once per failed allocation that no [reserve](keep_reserve) covers, with the requested
/// bytes. The allocation then fails as usual: Rust ends the process. The hook must not allocate.
///
/// Only the first hook is set; later calls do nothing.
pub fn on_exhausted(hook: fn(usize)) {
    // The cell ignores a second hook, as documented.
    let _ = EXHAUSTED.set(hook);
}

static EXHAUSTED: OnceLock<fn(usize)> = OnceLock::new();

#[cold]
fn exhausted(bytes: usize) {
    if let Some(hook) = EXHAUSTED.get() {
        hook(bytes);
    }
}

/// A new block from `allocate`, counted.
#[inline]
fn counted(bytes: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let pointer = obtained(bytes, allocate);
    if !pointer.is_null() {
        grow(bytes);
        gather::allocated(bytes);
    }
    pointer
}

/// The block from `allocate`; if it fails, tries again after freeing the reserve.
#[inline]
fn obtained(bytes: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
    if reserve::allows(bytes) {
        let pointer = allocate();
        if !pointer.is_null() {
            return pointer;
        }
    }
    obtained_from_reserve(bytes, allocate)
}

#[cold]
fn obtained_from_reserve(bytes: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
    if reserve::give(bytes) && reserve::allows(bytes) {
        let pointer = allocate();
        if !pointer.is_null() {
            return pointer;
        }
    }
    exhausted(bytes);
    std::ptr::null_mut()
}

fn grow(bytes: usize) {
    let now = IN_USE.fetch_add(bytes, Relaxed) + bytes;
    if now == bytes {
        keep::what_is_freed();
    }
    if now > PEAK.load(Relaxed) {
        PEAK.fetch_max(now, Relaxed);
    }
}

fn shrink(bytes: usize) {
    IN_USE.fetch_sub(bytes, Relaxed);
}

// SAFETY: every call is passed unchanged to the system allocator, at most twice if it fails, and its result, or null,
// is returned unchanged; a failed reallocation leaves the block unchanged. Counting uses only atomics and does not
// allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        counted(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        counted(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) };
        shrink(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let more = new_size.saturating_sub(layout.size());
        let moved = obtained(more, || unsafe {
            System.realloc(pointer, layout, new_size)
        });
        if moved.is_null() {
            return moved;
        }
        if new_size >= layout.size() {
            grow(new_size - layout.size());
            gather::allocated(new_size);
        } else {
            shrink(layout.size() - new_size);
        }
        moved
    }
}
