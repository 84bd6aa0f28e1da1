//! The counters, in a process of their own and without the test harness, whose main thread allocates beside a test.

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const KIB: usize = 1024;

fn main() {
    assert!(rekindle_alloc::installed());
    let base = rekindle_alloc::in_use();

    let mut buffer: Vec<u8> = Vec::with_capacity(64 * KIB);
    assert_eq!(rekindle_alloc::in_use() - base, 64 * KIB);

    // A reallocation counts the difference, not old plus new.
    rekindle_alloc::reset_peak();
    buffer.reserve_exact(96 * KIB);
    assert_eq!(rekindle_alloc::in_use() - base, 96 * KIB);
    assert_eq!(rekindle_alloc::peak() - base, 96 * KIB);

    let zeroed = vec![0u8; 32 * KIB];
    assert_eq!(rekindle_alloc::peak() - base, 128 * KIB);
    drop((buffer, zeroed));
    assert_eq!(rekindle_alloc::in_use(), base);
    assert_eq!(rekindle_alloc::peak() - base, 128 * KIB);

    rekindle_alloc::reset_peak();
    assert_eq!(rekindle_alloc::peak(), base);
    assert!(rekindle_alloc::lifetime_peak() >= base + 128 * KIB);

    println!("counts_what_is_asked_for_and_its_peak ... ok");

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    what_is_freed_is_used_again();
    a_failed_allocation_gets_the_reserve();
}

/// The program goes on where an allocation fails, and can see that it did.
fn a_failed_allocation_gets_the_reserve() {
    const MIB: usize = 1024 * KIB;
    let base = rekindle_alloc::in_use();
    assert!(rekindle_alloc::keep_reserve(8 * MIB));
    assert_eq!(rekindle_alloc::in_use(), base);
    rekindle_alloc::set_limit(base + MIB);
    let fits = vec![1u8; MIB / 2];
    assert_eq!(rekindle_alloc::failure(), None);
    let fails = vec![1u8; 2 * MIB];
    let failure = rekindle_alloc::Failure {
        asked: 2 * MIB,
        in_use: base + MIB / 2,
    };
    assert_eq!(rekindle_alloc::failure(), Some(failure));
    // The first failure is the one that is told.
    let more = vec![1u8; 4 * MIB];
    assert_eq!(rekindle_alloc::failure(), Some(failure));
    drop((fits, fails, more));

    assert!(rekindle_alloc::keep_reserve(MIB));
    assert_eq!(rekindle_alloc::failure(), None);
    rekindle_alloc::set_limit(usize::MAX);
    rekindle_alloc::drop_reserve();
    println!("a_failed_allocation_gets_the_reserve ... ok");
}

/// Pages that are touched again after they were freed are not asked of the system again.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn what_is_freed_is_used_again() {
    const MIB: usize = 1024 * KIB;
    const PAGE: usize = 4 * KIB;
    let touch = || drop([0; 4].map(|_| std::hint::black_box(vec![1u8; 8 * MIB])));
    let faults = || {
        // SAFETY: a plain struct of numbers, filled in by the call.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
            usage.ru_minflt as usize
        }
    };
    touch();
    let before = faults();
    for _ in 0..4 {
        touch();
    }
    let again = faults() - before;
    assert!(again < 8 * MIB / PAGE, "{again} pages");
    println!("what_is_freed_is_used_again ... ok");
}
