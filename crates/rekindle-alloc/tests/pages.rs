//! Large blocks: their content, and how much memory stays resident for them. In a process of its own, without the test
//! harness: what is resident is the process's.

#[cfg(target_os = "linux")]
fn main() {
    linux::blocks_of_many_threads_keep_their_content();
    linux::blocks_that_fit_no_gap_stay_within_the_peak();
    linux::memory_of_a_larger_phase_is_given_back();
    linux::kept_pages_serve_where_addresses_are_few();
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        alloc::{GlobalAlloc, Layout},
        hint::black_box,
        thread,
    };

    use rekindle_alloc::CountingAllocator;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    const MIB: usize = 1 << 20;
    const PAGE: usize = 4096;
    /// Stacks, and what small blocks leave behind.
    const BESIDE: usize = MIB;

    /// A number of bytes that the system says of this process.
    fn status(key: &str) -> usize {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
        let line = status.lines().find(|line| line.starts_with(key));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        let kib: usize = number.and_then(|kib| kib.parse().ok()).expect("a number");
        kib * 1024
    }

    /// Resident memory that is no block's.
    fn beside_blocks() -> usize {
        status("RssAnon").saturating_sub(rekindle_alloc::in_use())
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, end: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 % end as u64) as usize
        }

        /// From 8 bytes to 2 MiB, as often small as large.
        fn size(&mut self) -> usize {
            let largest = 1 << (3 + self.below(19));
            8 + self.below(largest)
        }
    }

    struct Block {
        start: *mut u8,
        layout: Layout,
        mark: u64,
    }

    impl Block {
        fn words(&self, size: usize) -> impl Iterator<Item = (u64, *mut u64)> + use<'_> {
            let start = self.start.cast::<u64>();
            let words = (0..size / 8).step_by(31);
            words.map(move |word| (self.mark ^ word as u64, start.wrapping_add(word)))
        }

        fn fill(&self) {
            for (value, place) in self.words(self.layout.size()) {
                // SAFETY: within the block, which is this test's.
                unsafe { place.write(value) };
            }
        }

        fn check(&self, size: usize) {
            for (value, place) in self.words(size) {
                // SAFETY: as above, and it was filled.
                assert_eq!(unsafe { place.read() }, value);
            }
        }
    }

    fn new_block(random: &mut Random) -> Block {
        let align = 8 << random.below(12);
        let layout = Layout::from_size_align(random.size(), align).expect("valid");
        let zeroed = random.below(2) == 0;
        // SAFETY: the size is not 0.
        let start = match zeroed {
            true => unsafe { ALLOCATOR.alloc_zeroed(layout) },
            false => unsafe { ALLOCATOR.alloc(layout) },
        };
        assert!(!start.is_null());
        assert_eq!(start.addr() % align, 0);
        if zeroed {
            // SAFETY: the block is this test's, and zeroed.
            let all = unsafe { std::slice::from_raw_parts(start, layout.size()) };
            assert!(all.iter().all(|&byte| byte == 0));
        }
        let mark = random.0;
        let block = Block {
            start,
            layout,
            mark,
        };
        block.fill();
        block
    }

    fn resize(block: &mut Block, size: usize) {
        let old = block.layout;
        // SAFETY: the block has this layout, and the size is not 0.
        block.start = unsafe { ALLOCATOR.realloc(block.start, old, size) };
        assert!(!block.start.is_null());
        block.layout = Layout::from_size_align(size, old.align()).expect("valid");
        block.check(old.size().min(size));
        block.fill();
    }

    fn free(block: &Block) {
        block.check(block.layout.size());
        // SAFETY: the block has this layout.
        unsafe { ALLOCATOR.dealloc(block.start, block.layout) };
    }

    fn work(seed: u64) {
        const ROUNDS: usize = 5_000;
        const MOST: usize = 60;
        let mut random = Random(seed);
        let mut blocks: Vec<Block> = Vec::with_capacity(MOST);
        for _ in 0..ROUNDS {
            let one = random.below(blocks.len().max(1));
            match random.below(8) {
                _ if blocks.is_empty() => blocks.push(new_block(&mut random)),
                0..2 => resize(&mut blocks[one], random.size()),
                4.. if blocks.len() < MOST => blocks.push(new_block(&mut random)),
                _ => free(&blocks.swap_remove(one)),
            }
        }
        for block in &blocks {
            free(block);
        }
    }

    pub fn blocks_of_many_threads_keep_their_content() {
        let (before, in_use) = (beside_blocks(), rekindle_alloc::in_use());
        thread::scope(|scope| {
            for seed in 1..=4_u64 {
                scope.spawn(move || work(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
            }
        });
        // What a thread takes for itself is no large block.
        assert!(rekindle_alloc::in_use() < in_use + PAGE);
        // Half of the blocks are small: what is free between them stays, and so do gaps beside aligned ones.
        let (resident, peak) = (status("RssAnon"), rekindle_alloc::lifetime_peak());
        assert!(
            resident <= before + peak + 4 * BESIDE,
            "{resident} with {peak}"
        );
        println!("blocks_of_many_threads_keep_their_content ... ok");
    }

    /// Of six blocks at a time none is as large as one before.
    pub fn blocks_that_fit_no_gap_stay_within_the_peak() {
        rekindle_alloc::trim();
        rekindle_alloc::reset_peak();
        let before = beside_blocks();
        let mut most = 0;
        for turn in 0..300 {
            let blocks = [(); 6].map(|()| black_box(vec![1u8; 3 * MIB + turn % 97 * 5 * PAGE]));
            most = most.max(status("RssAnon"));
            drop(blocks);
        }
        let peak = rekindle_alloc::peak();
        assert!(most <= before + peak + BESIDE, "{most} with {peak}");
        println!("blocks_that_fit_no_gap_stay_within_the_peak ... ok");
    }

    pub fn memory_of_a_larger_phase_is_given_back() {
        let before = beside_blocks();
        let large = || drop(black_box([(); 4].map(|()| vec![1u8; 16 * MIB])));
        let small = || drop(black_box([(); 4].map(|()| vec![1u8; 2 * MIB])));
        large();
        assert!(status("RssAnon") >= 64 * MIB);
        rekindle_alloc::trim();
        assert!(status("RssAnon") <= before + rekindle_alloc::in_use() + BESIDE);
        rekindle_alloc::reset_peak();
        small();
        let peak = rekindle_alloc::peak();
        assert!(status("RssAnon") <= before + peak + BESIDE);
        println!("memory_of_a_larger_phase_is_given_back ... ok");
    }

    /// Half of the addresses that are left are kept in gaps. A block of more than the other half gets them.
    pub fn kept_pages_serve_where_addresses_are_few() {
        const LEFT: usize = 64 * MIB;
        let mut before = libc::rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        let limit = |limit: &libc::rlimit| {
            // SAFETY: reads `limit`, which lives through the call.
            let done = unsafe { libc::setrlimit(libc::RLIMIT_AS, limit) };
            assert_eq!(done, 0);
        };
        // SAFETY: writes to `before`, which lives through the call.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut before) };
        assert_eq!(known, 0);
        rekindle_alloc::trim();
        limit(&libc::rlimit {
            rlim_cur: (status("VmSize") + LEFT) as libc::rlim_t,
            ..before
        });
        let mut blocks: Vec<Option<Vec<u8>>> = Vec::with_capacity(64);
        blocks.extend((0..64).map(|_| Some(vec![1u8; MIB - 4 * PAGE])));
        for block in blocks.iter_mut().skip(1).step_by(2) {
            *block = None;
        }
        let fits = black_box(vec![2u8; 24 * MIB]);
        let layout = Layout::array::<u8>(LEFT).expect("valid");
        // SAFETY: the size is not 0.
        assert!(unsafe { ALLOCATOR.alloc(layout) }.is_null());
        for block in blocks.iter().step_by(2).flatten() {
            assert!(block.iter().all(|&byte| byte == 1));
        }
        drop((fits, blocks));
        limit(&before);
        println!("kept_pages_serve_where_addresses_are_few ... ok");
    }
}
