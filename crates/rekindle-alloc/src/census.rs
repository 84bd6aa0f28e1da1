//! A census: the sizes of the blocks allocated and freed in an interval, without temporary ones.
//!
//! Every block that is allocated while counting is on is stored by its address, with the interval of its allocation. A
//! block that is freed in the same interval was temporary and is not counted. [`kept`] also returns later which blocks
//! of an interval still exist. All tables have a fixed size, so that counting allocates nothing: they use open
//! addressing with bounded probing. Blocks that find no free slot are missed; their number is returned.

use std::{
    ops::Range,
    sync::atomic::{AtomicIsize, AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed},
};

/// Maximum number of distinct sizes.
pub const SIZES: usize = 1 << 12;
/// Maximum number of stored blocks.
const BLOCKS: usize = 1 << 17;
/// Maximum number of slots probed for one size or one block.
const PROBES: usize = 64;
/// Number of latest intervals whose blocks are counted separately.
pub const INTERVALS: usize = 1 << 14;

/// A slot whose block was freed: probing continues past it.
const FREED: usize = 1;

/// Bytes of the smallest block that is counted; the maximum if counting is off.
static LEAST: AtomicUsize = AtomicUsize::new(usize::MAX);
static INTERVAL: AtomicU32 = AtomicU32::new(0);
static MISSED: AtomicUsize = AtomicUsize::new(0);

/// The size counted in a slot; 0 for an unused slot.
static SIZE: [AtomicUsize; SIZES] = [const { AtomicUsize::new(0) }; SIZES];
/// Blocks allocated in this interval that still exist.
static CAME: [AtomicIsize; SIZES] = [const { AtomicIsize::new(0) }; SIZES];
/// Older blocks that were freed in this interval.
static WENT: [AtomicIsize; SIZES] = [const { AtomicIsize::new(0) }; SIZES];

/// The block in a slot; 0 if there never was one.
static ADDRESS: [AtomicUsize; BLOCKS] = [const { AtomicUsize::new(0) }; BLOCKS];
static BORN: [AtomicU32; BLOCKS] = [const { AtomicU32::new(0) }; BLOCKS];

/// Bytes of the blocks of an interval that still exist, and the kind of the interval.
static KEPT: [AtomicIsize; INTERVALS] = [const { AtomicIsize::new(0) }; INTERVALS];
static KIND: [AtomicU8; INTERVALS] = [const { AtomicU8::new(0) }; INTERVALS];

/// Blocks of one size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SizeCount {
    /// The size of each in bytes.
    pub size: usize,
    /// Number of blocks allocated in the interval that still exist.
    pub came: usize,
    /// Number of older blocks freed in the interval.
    pub went: usize,
}

/// Starts counting blocks of at least `least` bytes, with a first interval. From here on every allocation takes some
/// tens of nanoseconds longer.
pub fn start_census(least: usize) {
    stop_census();
    for place in &ADDRESS {
        place.store(0, Relaxed);
    }
    for size in &SIZE {
        size.store(0, Relaxed);
    }
    MISSED.store(0, Relaxed);
    next_interval();
    LEAST.store(least, Relaxed);
}

/// Starts the next interval. Call this from one thread at a time.
pub fn next_interval() {
    let next = INTERVAL.load(Relaxed).wrapping_add(1);
    KEPT[next as usize % INTERVALS].store(0, Relaxed);
    INTERVAL.store(next, Relaxed);
    for count in CAME.iter().chain(&WENT) {
        count.store(0, Relaxed);
    }
}

/// Sets the kind of this interval and starts the next one. Does nothing if counting is off.
pub fn end_interval(kind: u8) {
    if LEAST.load(Relaxed) < usize::MAX {
        KIND[interval() as usize % INTERVALS].store(kind, Relaxed);
        next_interval();
    }
}

/// The number of this interval: one more than the previous one.
#[must_use]
pub fn interval() -> u32 {
    INTERVAL.load(Relaxed)
}

/// Bytes of the blocks that were allocated in intervals of a kind and still exist. Intervals more than [`INTERVALS`]
/// ago are no longer known.
#[must_use]
pub fn kept(intervals: Range<u32>, kind: u8) -> usize {
    let places = intervals.map(|interval| interval as usize % INTERVALS);
    let of_kind = places.filter(|&place| KIND[place].load(Relaxed) == kind);
    let bytes: isize = of_kind.map(|place| KEPT[place].load(Relaxed)).sum();
    usize::try_from(bytes).unwrap_or(0)
}

/// Stops counting.
pub fn stop_census() {
    LEAST.store(usize::MAX, Relaxed);
}

/// Stores in `into` the blocks allocated and freed in this interval, in all threads. Returns the number of blocks
/// missed since the start.
///
/// Allocates nothing if `into` has capacity for [`SIZES`] entries.
pub fn census(into: &mut Vec<SizeCount>) -> usize {
    into.clear();
    let read = |count: &AtomicIsize| usize::try_from(count.load(Relaxed)).unwrap_or(0);
    let counts = SIZE.iter().zip(CAME.iter().zip(&WENT));
    let counts = counts.map(|(size, (came, went))| SizeCount {
        size: size.load(Relaxed),
        came: read(came),
        went: read(went),
    });
    into.extend(counts.filter(|count| count.came + count.went > 0));
    MISSED.load(Relaxed)
}

/// A block was allocated.
#[inline]
pub(crate) fn born(address: *mut u8, size: usize) {
    if size >= LEAST.load(Relaxed) {
        remember(address as usize, size);
    }
}

/// A block is about to be freed.
#[inline]
pub(crate) fn dies(address: *mut u8, size: usize) {
    if size >= LEAST.load(Relaxed) {
        forget(address as usize, size);
    }
}

#[cold]
fn remember(address: usize, size: usize) {
    let place = places::<BLOCKS>(address).find(|&place| {
        let take = |free| ADDRESS[place].compare_exchange(free, address, Relaxed, Relaxed);
        take(0).is_ok() || take(FREED).is_ok()
    });
    match place {
        Some(place) => {
            let born = interval();
            BORN[place].store(born, Relaxed);
            keep(born, size as isize);
            add(&CAME, size, 1);
        }
        None => {
            MISSED.fetch_add(1, Relaxed);
        }
    }
}

#[cold]
fn forget(address: usize, size: usize) {
    let place = places::<BLOCKS>(address)
        .take_while(|&place| ADDRESS[place].load(Relaxed) != 0)
        .find(|&place| ADDRESS[place].load(Relaxed) == address);
    let born = place.map(|place| {
        // Read before the slot can be reused for another block.
        let born = BORN[place].load(Relaxed);
        ADDRESS[place].store(FREED, Relaxed);
        keep(born, -(size as isize));
        born
    });
    if born == Some(interval()) {
        add(&CAME, size, -1);
    } else {
        add(&WENT, size, 1);
    }
}

fn keep(born: u32, bytes: isize) {
    KEPT[born as usize % INTERVALS].fetch_add(bytes, Relaxed);
}

fn add(counts: &[AtomicIsize; SIZES], size: usize, change: isize) {
    let place = places::<SIZES>(size).find(|&place| {
        let holder = SIZE[place].compare_exchange(0, size, Relaxed, Relaxed);
        holder.is_ok() || holder == Err(size)
    });
    match place {
        Some(place) => {
            counts[place].fetch_add(change, Relaxed);
        }
        None => {
            MISSED.fetch_add(1, Relaxed);
        }
    }
}

/// The slots to probe for a key: first by Fibonacci hashing, because sizes and addresses are multiples of powers of
/// two, then the following slots.
fn places<const TABLE: usize>(key: usize) -> impl Iterator<Item = usize> {
    let hash = (key as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - TABLE.ilog2());
    (0..PROBES).map(move |probe| (hash as usize + probe) % TABLE)
}
