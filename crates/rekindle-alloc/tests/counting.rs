//! The counters, in a process of their own: one test, so that no other thread allocates meanwhile.

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const KIB: usize = 1024;

#[test]
fn counts_what_is_asked_for_and_its_peak() {
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
}
