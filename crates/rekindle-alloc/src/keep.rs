//! Keeps freed memory in the process, and makes threads share arenas if address space is limited.

/// Tells the system allocator to keep freed memory, and, if the address space is limited, to give threads no separate
/// arenas: each takes 64 MiB of address space regardless of its content. Call this while nothing is allocated.
#[cold]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn what_is_freed() {
    /// The maximum that glibc accepts on 64-bit machines; larger blocks are returned to the system.
    const MAPPED_FROM: libc::c_int = 32 << 20;
    const NEVER: libc::c_int = -1;
    // SAFETY: sets two parameters of the allocator, under its own lock. If a call fails, nothing changes.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
        libc::mallopt(libc::M_TRIM_THRESHOLD, NEVER);
        if address_space_is_limited() {
            libc::mallopt(libc::M_ARENA_MAX, 1);
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn address_space_is_limited() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: writes to `limit`, which lives through the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    known && limit.rlim_cur != libc::RLIM_INFINITY
}

/// Other allocators are left as they are.
#[cold]
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn what_is_freed() {}
