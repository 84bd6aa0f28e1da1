//! Sets glibc's allocator up for the small blocks that are left to it.

/// Lets threads share an arena: each arena keeps freed memory of its own, and takes 64 MiB of address space regardless
/// of its content. Call this while nothing is allocated.
#[cold]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn one() {
    /// glibc's own value, which it would otherwise raise to the size of a block that is freed.
    const MAPPED_FROM: libc::c_int = 128 << 10;
    // SAFETY: sets two parameters of the allocator, under its own lock. If a call fails, nothing changes.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
    }
}

/// Returns what the arena keeps to the system.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn trim() {
    // SAFETY: under the allocator's own lock.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators are left as they are.
#[cold]
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn one() {}

/// Other allocators are left as they are.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn trim() {}
