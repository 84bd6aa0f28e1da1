//! Freed memory stays with the process.

/// Tells the system allocator to keep what is freed. Nothing was allocated before, or everything was freed.
#[cold]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn what_is_freed() {
    /// The most that glibc takes on machines of 64 bits; greater blocks go back to the system.
    const MAPPED_FROM: libc::c_int = 32 << 20;
    const NEVER: libc::c_int = -1;
    // SAFETY: sets two numbers of the allocator, under its own lock. Where it refuses, it stays as it was.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
        libc::mallopt(libc::M_TRIM_THRESHOLD, NEVER);
    }
}

/// Other allocators are left as they are.
#[cold]
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn what_is_freed() {}
