//! Pages from the system: Linux moves them without copying, so only there blocks are served from pages.

/// Whether there are such pages.
pub(crate) const HAS_PAGES: bool = cfg!(target_os = "linux");

pub(crate) use pages::{extend, map, unmap};

#[cfg(target_os = "linux")]
mod pages {
    use std::ptr;

    /// New pages, which are zero.
    pub(crate) fn map(bytes: usize) -> Option<usize> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: pages at an address that the system chooses replace nothing.
        let block = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        (block != libc::MAP_FAILED).then(|| block.expose_provenance())
    }

    /// Moves pages that only the caller refers to, to where more can follow them, which are zero.
    pub(crate) fn extend(start: usize, old: usize, new: usize) -> Option<usize> {
        let pages = ptr::with_exposed_provenance_mut(start);
        // SAFETY: the pages are the caller's, and the system chooses an address where nothing is replaced. If it
        // cannot, nothing changes.
        let moved = unsafe { libc::mremap(pages, old, new, libc::MREMAP_MAYMOVE) };
        (moved != libc::MAP_FAILED).then(|| moved.expose_provenance())
    }

    /// Gives pages back that nobody refers to.
    pub(crate) fn unmap(start: usize, bytes: usize) {
        let pages = ptr::with_exposed_provenance_mut(start);
        // SAFETY: nobody refers to the pages. The system cannot divide an area if it has as many as it allows; then
        // it takes the memory back all the same, and only the addresses are lost.
        unsafe {
            if libc::munmap(pages, bytes) != 0 {
                libc::madvise(pages, bytes, libc::MADV_DONTNEED);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod pages {
    pub(crate) fn map(_: usize) -> Option<usize> {
        None
    }

    pub(crate) fn extend(_: usize, _: usize, _: usize) -> Option<usize> {
        None
    }

    pub(crate) fn unmap(_: usize, _: usize) {}
}
