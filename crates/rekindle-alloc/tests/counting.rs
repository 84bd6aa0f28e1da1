//! The counters, in a process of their own and without the test harness, whose main thread allocates beside a test.

use rekindle_alloc::SizeCount;

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const KIB: usize = 1024;

/// The smallest blocks that are counted.
const LEAST: usize = 256;

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

    let older = vec![0u8; 40 * KIB];
    let mut census = Vec::with_capacity(rekindle_alloc::SIZES);
    rekindle_alloc::start_census(LEAST);
    let newer = [0; 3].map(|_| vec![0u8; 24 * KIB]);
    let small = vec![0u8; LEAST - 1];
    let temporary = vec![0u8; 48 * KIB];
    drop((older, small, temporary));
    assert_eq!(rekindle_alloc::census(&mut census), 0);
    census.sort_unstable_by_key(|count| count.size);
    let count = |size, came, went| SizeCount { size, came, went };
    assert_eq!(census, [count(24 * KIB, 3, 0), count(40 * KIB, 0, 1)]);

    // One of a size comes and one goes: both are seen.
    rekindle_alloc::next_interval();
    let replaced = vec![0u8; 24 * KIB];
    let [first, second, third] = newer;
    drop(first);
    rekindle_alloc::census(&mut census);
    rekindle_alloc::stop_census();
    assert_eq!(census, [count(24 * KIB, 1, 1)]);
    drop((replaced, second, third));
    println!("counts_what_is_asked_for_and_its_peak ... ok");

    what_stays_is_told_by_its_birth();
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    what_is_freed_is_used_again();
    a_failed_allocation_gets_the_reserve();
}

/// Blocks are told apart by the kind of interval in which they were allocated, as long as they are there.
fn what_stays_is_told_by_its_birth() {
    const FIRST: u8 = 1;
    const SECOND: u8 = 2;
    let mut kept = Vec::with_capacity(8);
    rekindle_alloc::start_census(1);
    let start = rekindle_alloc::interval();
    for _ in 0..2 {
        kept.push(vec![0u8; 10]);
        let passes = vec![0u8; KIB];
        rekindle_alloc::end_interval(FIRST);
        kept.push(vec![0u8; 300]);
        drop(passes);
        rekindle_alloc::end_interval(SECOND);
    }
    let all = start..rekindle_alloc::interval();
    assert_eq!(rekindle_alloc::kept(all.clone(), FIRST), 20);
    assert_eq!(rekindle_alloc::kept(all.clone(), SECOND), 600);
    assert_eq!(rekindle_alloc::kept(start..start + 2, SECOND), 300);
    kept.truncate(1);
    assert_eq!(rekindle_alloc::kept(all.clone(), FIRST), 10);
    assert_eq!(rekindle_alloc::kept(all, SECOND), 0);
    rekindle_alloc::stop_census();
    let before = rekindle_alloc::interval();
    rekindle_alloc::end_interval(FIRST);
    assert_eq!(rekindle_alloc::interval(), before);
    println!("what_stays_is_told_by_its_birth ... ok");
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
