//! Address space that is kept back for an allocation that fails.
//!
//! A Rust program ends where an allocation fails. With a reserve it goes on for a while: the reserve is freed, the
//! allocation is tried once more, and the failure is noted, so that whoever looks can give up what it does, free memory,
//! and keep a new reserve. Nobody writes to the block, so it takes address space (`ulimit -v`, strict overcommit), not
//! memory, and it is not counted.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicUsize,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

const ALIGN: usize = 4096;

/// The block, null where there is none or it was given away.
static BLOCK: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Its size; stays when it is given away; 0 where none was kept.
static SIZE: AtomicUsize = AtomicUsize::new(0);
/// What the allocation asked for that got the reserve, and the bytes in use then.
static ASKED: AtomicUsize = AtomicUsize::new(0);
static IN_USE: AtomicUsize = AtomicUsize::new(0);
/// The most bytes that may be in use.
static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// An allocation that failed, and got what was kept in reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Bytes that it asked for.
    pub asked: usize,
    /// Bytes in use then.
    pub in_use: usize,
}

/// Keeps `bytes` in reserve, in the place of an earlier reserve; `false` where the system has no such block. What had
/// failed is forgotten. To be called by one thread at a time.
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

/// The first allocation that failed since the reserve was kept, if one did.
#[must_use]
pub fn failure() -> Option<Failure> {
    let asked = ASKED.load(Acquire);
    (asked > 0).then(|| Failure {
        asked,
        in_use: IN_USE.load(Relaxed),
    })
}

/// Has allocations fail, as if the system refused them, that would take the bytes in use past `bytes`; a reserve that is
/// given away comes on top. For trying what a program does then.
pub fn set_limit(bytes: usize) {
    LIMIT.store(bytes, Relaxed);
}

/// Whether `asked` bytes more are within the limit.
#[inline]
pub(crate) fn allows(asked: usize) -> bool {
    let limit = LIMIT.load(Relaxed);
    limit == usize::MAX
        || asked == 0
        || crate::in_use().saturating_add(asked) <= limit.saturating_add(given())
}

/// What was given away.
#[cold]
fn given() -> usize {
    match BLOCK.load(Relaxed).is_null() {
        true => SIZE.load(Relaxed),
        false => 0,
    }
}

/// Gives the reserve to an allocation that failed: whether it is worth another try.
#[cold]
pub(crate) fn give(asked: usize) -> bool {
    let size = SIZE.load(Relaxed);
    if free() {
        IN_USE.store(crate::in_use(), Relaxed);
        ASKED.store(asked.max(1), Release);
    }
    // Another thread may have given it a moment ago.
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
