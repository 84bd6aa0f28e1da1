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
//! The requested bytes ([`Layout::size`]) are counted, over all threads of the process. Growing a block counts only the
//! difference. An allocation costs a few atomic operations, a large one also a lock.
//!
//! On Linux, blocks of 32 KiB and more are cut from pages that this crate keeps itself, at most as many as hold the
//! memory that is resident for blocks at the peak of the bytes in use. The system's allocator would either hold much
//! more than that, in gaps between blocks and in freed memory, or return memory and request it again, page by page,
//! several times in a training step with a tight budget.
//!
//! Files: `count.rs` counts, `blocks.rs` is where blocks come from, `pages.rs` keeps freed pages for large blocks,
//! `system.rs` gets pages, `arena.rs` sets glibc's allocator up for small blocks, `reserve.rs` keeps memory for an
//! allocation that fails, `gather.rs` makes threads hold their memory at the same time.
//!
//! `unsafe` is what the trait it implements demands; beside it only `rekindle-cuda`, which calls the driver, has any.

#![deny(missing_docs)]

mod arena;
mod blocks;
mod count;
mod gather;
mod pages;
mod reserve;
mod system;

use std::{
    alloc::{GlobalAlloc, Layout},
    sync::OnceLock,
};

pub use count::{in_use, installed, lifetime_peak, peak, reset_peak};
pub use gather::gather_threads;
pub use reserve::{Failure, drop_reserve, failure, keep_reserve, set_limit};

/// The system allocator, counted. Install it with `#[global_allocator]`.
pub struct CountingAllocator;

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

/// Returns freed memory to the system. From now on, as much is kept as the bytes in use need from now on at most.
pub fn trim() {
    pages::trim();
    arena::trim();
}

/// The block from `allocate`, which takes `bytes` more; if it fails, tries again after giving back freed pages, and then
/// the reserve.
#[inline]
fn obtained(bytes: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
    if reserve::allows(bytes) {
        let pointer = allocate();
        if !pointer.is_null() {
            return pointer;
        }
    }
    obtained_at_last(bytes, allocate)
}

#[cold]
fn obtained_at_last(bytes: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
    let sources: [fn(usize) -> bool; 2] = [|_| pages::give_all_back(), reserve::give];
    for gives in sources {
        if gives(bytes) && reserve::allows(bytes) {
            let pointer = allocate();
            if !pointer.is_null() {
                return pointer;
            }
        }
    }
    exhausted(bytes);
    std::ptr::null_mut()
}

// SAFETY: a block is freed and resized where it was allocated, since its layout says where. A failed reallocation leaves
// the block unchanged. Counting uses only atomics and does not allocate.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = obtained(layout.size(), || unsafe { blocks::allocate(layout, false) });
        gather::allocated(block, layout.size());
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = obtained(layout.size(), || unsafe { blocks::allocate(layout, true) });
        gather::allocated(block, layout.size());
        block
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { blocks::free(pointer, layout) };
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let more = new_size.saturating_sub(layout.size());
        let block = obtained(more, || unsafe {
            blocks::resize(pointer, layout, new_size)
        });
        if more > 0 {
            gather::allocated(block, new_size);
        }
        block
    }
}
