//! Threads that are gathered hold their blocks at the same time. In a process of its own: one test, so that no other
//! thread allocates meanwhile.

use std::{hint::black_box, thread};

#[global_allocator]
static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;

const THREADS: usize = 3;
const BLOCK: usize = 1 << 20;

/// Blocks that each thread takes, one after the other. That is over at once, mostly before the next thread has begun.
const BLOCKS: usize = 100;

#[test]
fn threads_that_are_gathered_hold_their_blocks_at_once() {
    let base = rekindle_alloc::in_use();
    rekindle_alloc::reset_peak();
    rekindle_alloc::gather_threads(true);
    let threads = [(); THREADS].map(|()| {
        thread::spawn(|| {
            for _ in 0..BLOCKS {
                black_box(Vec::<u8>::with_capacity(BLOCK));
            }
        })
    });
    for thread in threads {
        thread.join().expect("no panic");
    }
    rekindle_alloc::gather_threads(false);
    assert!(rekindle_alloc::peak() - base >= THREADS * BLOCK);
}
