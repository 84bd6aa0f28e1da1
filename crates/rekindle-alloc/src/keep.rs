//! Freed memory stays with the process, and threads share what there is where address space is scarce.

/// Tells the system allocator to keep what is freed, and to give threads no arenas of their own where the address space has
/// a limit: each takes 64 MiB of it, whatever is in it. Nothing was allocated before, or everything was freed.
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
