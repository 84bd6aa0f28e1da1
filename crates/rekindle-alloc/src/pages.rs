//! Large blocks, in whole pages taken from the system.
//!
//! Freed pages are kept for later blocks, but only as many as keep all pages and the small blocks together within the
//! most bytes in use so far. More are given back before others are taken. So the memory that is resident for blocks
//! stays at the peak of the bytes in use, and pages are only taken anew where the kept ones do not fit.
//!
//! Kept pages form runs in a table, sorted by address; neighbours are merged. A block is cut from the smallest run that
//! holds it. If there is none, the largest run moves to an address where it can grow (`mremap`), which keeps its pages:
//! only the missing ones are taken. The size of a block follows from its layout, so blocks have no headers.

use std::{
    alloc::Layout,
    ptr,
    sync::{Mutex, PoisonError},
};

use crate::{count, system};

/// Blocks are multiples of this: a page, or of unknown processors the largest page that there is.
const PAGE: usize = if cfg!(target_arch = "x86_64") {
    4096
} else {
    65_536
};

/// Pages start at multiples of at least this.
const ALIGN: usize = 4096;

/// Bytes of the smallest block that is served from here: rounding adds an eighth at most.
const LEAST: usize = 8 * PAGE;

/// Maximum number of runs. Pages that would form one more are given back.
const RUNS: usize = 1024;

/// Adjacent kept pages.
#[derive(Clone, Copy)]
struct Run {
    start: usize,
    bytes: usize,
}

/// All kept pages.
struct Pages {
    /// The first `len` are used: sorted by address, and none ends where the next one starts.
    runs: [Run; RUNS],
    len: usize,
    /// Bytes of all runs.
    kept: usize,
    /// Bytes that blocks are rounded up by.
    rounding: usize,
    /// The most bytes in use since the last [`trim`].
    most: usize,
}

static PAGES: Mutex<Pages> = Mutex::new(Pages {
    runs: [Run { start: 0, bytes: 0 }; RUNS],
    len: 0,
    kept: 0,
    rounding: 0,
    most: 0,
});

/// Whether blocks of this layout are served from here.
#[inline]
pub(crate) fn serve(layout: Layout) -> bool {
    system::HAS_PAGES && layout.size() >= LEAST && layout.align() <= ALIGN
}

/// A block of this size, counted; null if the system has no such pages.
pub(crate) fn allocate(size: usize, zeroed: bool) -> *mut u8 {
    let taken = with(|pages| {
        let taken = pages.take(whole(size))?;
        pages.count(0, size);
        Some(taken)
    });
    let Some((start, used)) = taken else {
        return ptr::null_mut();
    };
    let block = ptr::with_exposed_provenance_mut::<u8>(start);
    if zeroed {
        // SAFETY: the block has at least `size` bytes, and is nobody else's. Pages from the system are zero.
        unsafe { block.write_bytes(0, used.min(size)) };
    }
    block
}

/// Frees a block of this size.
pub(crate) fn free(block: *mut u8, size: usize) {
    with(|pages| {
        pages.keep(block.expose_provenance(), whole(size));
        pages.count(size, 0);
        // Small blocks may have taken the place of kept pages.
        pages.make_room(0);
    });
}

/// The block with another size, counted, perhaps moved; null if it must be copied to a new block.
pub(crate) fn resize(block: *mut u8, size: usize, new_size: usize) -> *mut u8 {
    let (start, old, new) = (block.expose_provenance(), whole(size), whole(new_size));
    let moved = with(|pages| {
        let moved = pages.resize(start, old, new)?;
        pages.count(size, new_size);
        Some(moved)
    });
    ptr::with_exposed_provenance_mut(moved.unwrap_or(0))
}

/// Gives all kept pages back; returns whether there were any.
#[cold]
pub(crate) fn give_all_back() -> bool {
    // Elsewhere the lock itself may need memory.
    system::HAS_PAGES
        && with(|pages| {
            let any = pages.kept > 0;
            pages.give_back(pages.kept);
            any
        })
}

/// Gives all kept pages back, and from now on keeps only what is needed from now on.
pub(crate) fn trim() {
    with(|pages| {
        pages.give_back(pages.kept);
        pages.most = count::in_use();
    });
}

fn with<R>(act: impl FnOnce(&mut Pages) -> R) -> R {
    act(&mut PAGES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A layout's size is at most `isize::MAX`, so this does not overflow.
fn whole(size: usize) -> usize {
    size.next_multiple_of(PAGE)
}

impl Pages {
    /// A block of one size became one of another; a size of 0 is none.
    fn count(&mut self, size: usize, new_size: usize) {
        count::resized(size, new_size);
        self.rounding += whole(new_size) - new_size;
        self.rounding -= whole(size) - size;
        self.most = self.most.max(count::in_use());
    }

    /// The place of the first run at or after an address.
    fn place(&self, address: usize) -> usize {
        self.runs[..self.len].partition_point(|run| run.start < address)
    }

    /// The place of the smallest run of at least this many bytes.
    fn smallest(&self, bytes: usize) -> Option<usize> {
        let holds = |&place: &usize| self.runs[place].bytes >= bytes;
        (0..self.len)
            .filter(holds)
            .min_by_key(|&place| self.runs[place].bytes)
    }

    fn largest(&self) -> Option<usize> {
        (0..self.len).max_by_key(|&place| self.runs[place].bytes)
    }

    /// The start of a block, and how many of its first bytes were used before.
    fn take(&mut self, bytes: usize) -> Option<(usize, usize)> {
        if let Some(place) = self.smallest(bytes) {
            return Some((self.cut(place, bytes), bytes));
        }
        if let Some(place) = self.largest() {
            let used = self.runs[place].bytes;
            let start = self.cut(place, used);
            self.make_room(bytes);
            if let Some(moved) = system::extend(start, used, bytes) {
                return Some((moved, used));
            }
            // It consists of parts that the system took or moved separately.
            self.keep(start, used);
        }
        self.make_room(bytes);
        Some((system::map(bytes)?, 0))
    }

    /// A block of another number of bytes at the same address, or moved with its pages.
    fn resize(&mut self, start: usize, old: usize, new: usize) -> Option<usize> {
        if new <= old {
            self.keep(start + new, old - new);
            return Some(start);
        }
        let next = self.place(start + old);
        let follows = |run: &Run| run.start == start + old && run.bytes >= new - old;
        if self.runs[..self.len].get(next).is_some_and(follows) {
            self.cut(next, new - old);
            return Some(start);
        }
        self.make_room(new - old);
        system::extend(start, old, new)
    }

    /// Takes the first bytes of a run.
    fn cut(&mut self, place: usize, bytes: usize) -> usize {
        let run = &mut self.runs[place];
        let start = run.start;
        run.start += bytes;
        run.bytes -= bytes;
        if run.bytes == 0 {
            self.remove(place);
        }
        self.kept -= bytes;
        start
    }

    fn remove(&mut self, place: usize) {
        self.runs.copy_within(place + 1..self.len, place);
        self.len -= 1;
    }

    fn keep(&mut self, start: usize, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let place = self.place(start);
        let after = place < self.len && self.runs[place].start == start + bytes;
        let before = place > 0 && self.runs[place - 1].start + self.runs[place - 1].bytes == start;
        match (before, after) {
            (true, true) => {
                self.runs[place - 1].bytes += bytes + self.runs[place].bytes;
                self.remove(place);
            }
            (true, false) => self.runs[place - 1].bytes += bytes,
            (false, true) => {
                self.runs[place].start = start;
                self.runs[place].bytes += bytes;
            }
            (false, false) if self.len == RUNS => return system::unmap(start, bytes),
            (false, false) => {
                self.runs.copy_within(place..self.len, place + 1);
                self.runs[place] = Run { start, bytes };
                self.len += 1;
            }
        }
        self.kept += bytes;
    }

    /// Gives back as many kept pages as are too many once `more` bytes are in use.
    fn make_room(&mut self, more: usize) {
        let used = (count::in_use() + self.rounding).saturating_add(more);
        let held = used.saturating_add(self.kept);
        self.give_back(whole(held.saturating_sub(self.most).min(self.kept)));
    }

    /// Gives back pages, at most all, of the smallest runs first: few blocks fit there.
    fn give_back(&mut self, bytes: usize) {
        let mut left = bytes;
        while left > 0 {
            let Some(place) = self.smallest(0) else {
                return;
            };
            let part = self.runs[place].bytes.min(left);
            system::unmap(self.cut(place, part), part);
            left -= part;
        }
    }
}
