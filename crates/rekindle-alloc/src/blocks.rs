//! Where blocks come from, counted: large ones from [`pages`], all others from the system's allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::Ordering::Relaxed,
};

use crate::{
    count::{IN_USE, resized},
    pages,
};

/// A new block; null if there is none.
///
/// # Safety
///
/// As [`GlobalAlloc::alloc`].
#[inline]
pub(crate) unsafe fn allocate(layout: Layout, zeroed: bool) -> *mut u8 {
    if pages::serve(layout) {
        return pages::allocate(layout.size(), zeroed);
    }
    let block = match zeroed {
        true => unsafe { System.alloc_zeroed(layout) },
        false => unsafe { System.alloc(layout) },
    };
    if !block.is_null() {
        resized(0, layout.size());
    }
    block
}

/// Frees a block.
///
/// # Safety
///
/// As [`GlobalAlloc::dealloc`].
#[inline]
pub(crate) unsafe fn free(block: *mut u8, layout: Layout) {
    if pages::serve(layout) {
        return pages::free(block, layout.size());
    }
    unsafe { System.dealloc(block, layout) };
    resized(layout.size(), 0);
}

/// The block with another size, perhaps moved; null, and the block as it was, if there is none.
///
/// # Safety
///
/// As [`GlobalAlloc::realloc`].
pub(crate) unsafe fn resize(block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
    // SAFETY: the caller promises that the new size makes a layout.
    let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
    // The layout says where a block comes from.
    match (pages::serve(layout), pages::serve(new)) {
        (false, false) => {
            let moved = unsafe { System.realloc(block, layout, size) };
            if !moved.is_null() {
                resized(layout.size(), size);
            }
            return moved;
        }
        (true, true) => {
            let moved = pages::resize(block, layout.size(), size);
            if !moved.is_null() {
                return moved;
            }
        }
        (true, false) | (false, true) => {}
    }
    // Counted by its difference, as where it stays: which of the two happens is chance.
    IN_USE.fetch_sub(layout.size(), Relaxed);
    // SAFETY: as the caller promises.
    let moved = unsafe { allocate(new, false) };
    IN_USE.fetch_add(layout.size(), Relaxed);
    if !moved.is_null() {
        // SAFETY: the blocks are different ones, and each has the bytes that are copied.
        unsafe {
            block.copy_to_nonoverlapping(moved, layout.size().min(size));
            free(block, layout);
        }
    }
    moved
}
