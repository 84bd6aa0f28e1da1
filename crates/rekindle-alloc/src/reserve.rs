//! Address space that is reserved for a failing allocation.
//!
//! A Rust program ends when an allocation fails. With a reserve it can continue for a while: the reserve is freed, the
//! allocation is tried again, and the failure is recorded, so that the program can abandon its work, free memory, and
//! keep a new reserve. The block is never written, so it takes address space (`ulimit -v`, strict overcommit) but no
//! memory, and it is not counted.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use crate::count;

const ALIGN: usize = 4096;

/// The block; null if there is none or it was used.
static BLOCK: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Its size, also after it was used; 0 if none was kept.
static SIZE: AtomicUsize = AtomicUsize::new(0);
/// The bytes requested by the allocation that used the reserve, and the bytes in use at that time.
static ASKED: AtomicUsize = AtomicUsize::new(0);
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// Maximum bytes in use.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// A failed allocation that used the reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Requested bytes.
    pub asked: usize,
    /// Bytes in use at that time.
    pub in_use: usize,
}

/// Keeps `bytes` in reserve, replacing an earlier reserve; returns `false` if the system has no such block. Resets a
/// recorded failure. Call this from one thread at a time.
pub fn keep_reserve(bytes: usize) -> bool {
    drop_reserve();
    let Ok(layout) = Layout::from_size_align(bytes.max(1), ALIGN) else {
        return false;
    };
    // SAFETY: the layout's size is not 0.
    let block = unsafe { System.alloc(layout) };
    if block.is_null() {
        return false;
    }
    SIZE.store(layout.size(), Relaxed);
    BLOCK.store(block, Release);
    true
}

/// Keeps no reserve from now on: a failed allocation ends the process.
pub fn drop_reserve() {
    free();
    SIZE.store(0, Relaxed);
    ASKED.store(0, Relaxed);
}

/// The first allocation that failed since the reserve was kept, if any.
#[must_use]
pub fn failure() -> Option<Failure> {
    let asked = ASKED.load(Acquire);
    (asked > 0).then(|| Failure {
        asked,
        in_use: IN_USE.load(Relaxed),
    })
}

/// Makes allocations fail that would raise the bytes in use above `bytes`, as if the system had no memory; a used
/// reserve is allowed in addition. For testing how a program behaves then.
pub fn set_limit(bytes: usize) {
    LIMIT.store(bytes, Relaxed);
}

/// Whether `asked` bytes more are within the limit.
#[inline]
pub(crate) fn allows(asked: usize) -> bool {
    let limit = LIMIT.load(Relaxed);
    limit == usize::MAX
        || asked == 0
        || count::in_use().saturating_add(asked) <= limit.saturating_add(given())
}

/// The bytes of the used reserve.
#[cold]
fn given() -> usize {
    let used = BLOCK.load(Relaxed).is_null();
    if used { SIZE.load(Relaxed) } else { 0 }
}

/// Frees the reserve for a failed allocation. Returns whether to try again.
#[cold]
pub(crate) fn give(asked: usize) -> bool {
    let size = SIZE.load(Relaxed);
    if free() {
        IN_USE.store(count::in_use(), Relaxed);
        ASKED.store(asked.max(1), Release);
    }
    // Another thread may have freed it just before.
    size > 0
}

fn free() -> bool {
    let block = BLOCK.swap(ptr::null_mut(), AcqRel);
    if block.is_null() {
        return false;
    }
    if let Ok(layout) = Layout::from_size_align(SIZE.load(Relaxed), ALIGN) {
        // SAFETY: the block was allocated by `keep_reserve` with this layout, and the swap gave it to this call alone.
        unsafe { System.dealloc(block, layout) };
    }
    true
}
