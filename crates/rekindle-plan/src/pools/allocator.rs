//! The pools of a device: where a buffer goes, and what they hold of the device.
//!
//! Sizes are rounded up to the alignment before anything else, as cubecl's layout policies do. In use is counted after
//! that.
//!
//! By default cubecl has both kinds of pools at once. Buffers that are made as long-lived ones go to the pool of exact
//! sizes, and **so does every later buffer of a size that this pool has ever held** (`MemoryManagement::reserve`); all
//! others go to pages. Enforced, the pool of exact sizes takes everything, whatever its size.

use super::exact_sizes::ExactSizes;
use super::sliced::{SlicedPool, Spot};
use super::{PoolDevice, PoolMode};
use crate::bytes::Bytes;

/// The pools of one stream of a device.
///
/// ```
/// use rekindle_plan::Bytes;
/// use rekindle_plan::pools::{PoolDevice, PoolMode, Pools};
///
/// let device = PoolDevice { max_page_bytes: Bytes(1 << 20), alignment: Bytes(256) };
/// let mut pools = Pools::new(PoolMode::ExactSizes, device);
/// let first = pools.reserve(Bytes(1_000))?;
/// pools.free(first);
/// let _second = pools.reserve(Bytes(2_000))?;
/// assert_eq!(pools.reserved(), Bytes(1_024 + 2_048));
/// # Ok::<(), rekindle_plan::pools::TooLarge>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pools {
    mode: PoolMode,
    device: PoolDevice,
    exact: ExactSizes,
    sliced: Vec<SlicedPool>,
    in_use: Bytes,
    peak_in_use: Bytes,
}

/// A buffer that [`Pools`] handed out. One that is dropped instead of [freed](Pools::free) stays in use.
#[must_use = "a buffer that is dropped instead of freed stays in use"]
#[derive(Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Aligned.
    size: Bytes,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// A buffer of no bytes.
    Nowhere,
    ExactSize,
    Sliced {
        pool: usize,
        spot: Spot,
    },
}

/// No page of the device can hold a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a buffer of {size} is larger than the largest page, {largest}")]
pub struct TooLarge {
    /// The size of the buffer, aligned.
    pub size: Bytes,
    /// The size of the largest page.
    pub largest: Bytes,
}

impl Pools {
    /// The pools before the first buffer: nothing is taken from the device.
    pub fn new(mode: PoolMode, device: PoolDevice) -> Pools {
        Pools {
            mode,
            device,
            exact: ExactSizes::default(),
            sliced: SlicedPool::of(device),
            in_use: Bytes::ZERO,
            peak_in_use: Bytes::ZERO,
        }
    }

    /// A buffer of this size.
    ///
    /// # Errors
    /// With [`PoolMode::Pages`], the buffer fits no page. Exact sizes have no limit of their own.
    pub fn reserve(&mut self, size: Bytes) -> Result<Buffer, TooLarge> {
        let size = self.device.align(size);
        if self.mode == PoolMode::ExactSizes || self.exact.knows(size) {
            return Ok(self.reserve_long_lived(size));
        }
        if size == Bytes::ZERO {
            return Ok(self.hand_out(size, Place::Nowhere));
        }
        let spot = self
            .sliced
            .iter_mut()
            .enumerate()
            .find(|(_, sliced)| sliced.accepts(size))
            .and_then(|(pool, sliced)| Some((pool, sliced.take(size)?)));
        let (pool, spot) = spot.ok_or(TooLarge {
            size,
            largest: self.device.largest_page(),
        })?;
        Ok(self.hand_out(size, Place::Sliced { pool, spot }))
    }

    /// A buffer of this size that is made as a long-lived one: of its exact size with either mode.
    pub fn reserve_long_lived(&mut self, size: Bytes) -> Buffer {
        let size = self.device.align(size);
        if size == Bytes::ZERO {
            return self.hand_out(size, Place::Nowhere);
        }
        self.exact.take(size);
        self.hand_out(size, Place::ExactSize)
    }

    fn hand_out(&mut self, size: Bytes, place: Place) -> Buffer {
        self.in_use += size;
        self.peak_in_use = self.peak_in_use.max(self.in_use);
        Buffer { size, place }
    }

    /// Gives a buffer back to the pools, which keep its bytes for others.
    ///
    /// # Panics
    /// May panic if the buffer came from other pools.
    pub fn free(&mut self, buffer: Buffer) {
        match buffer.place {
            Place::Nowhere => {}
            Place::ExactSize => self.exact.give_back(buffer.size),
            Place::Sliced { pool, spot } => self.sliced[pool].give_back(spot, buffer.size),
        }
        self.in_use -= buffer.size;
    }

    /// The bytes taken from the device. They never fall.
    pub fn reserved(&self) -> Bytes {
        let pages: Bytes = self.sliced.iter().map(SlicedPool::reserved).sum();
        self.exact.reserved() + pages
    }

    /// The bytes of the buffers that are handed out, each aligned.
    pub fn in_use(&self) -> Bytes {
        self.in_use
    }

    /// The most bytes that were ever in use.
    pub fn peak_in_use(&self) -> Bytes {
        self.peak_in_use
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::{Pools, TooLarge};
    use crate::bytes::Bytes;
    use crate::pools::{PoolDevice, PoolMode};

    const MIB: u64 = 1 << 20;
    /// Pages of 8, 32 and 128 MiB; `sliced.rs` works them out.
    const DEVICE: PoolDevice = PoolDevice {
        max_page_bytes: Bytes(128 * MIB),
        alignment: Bytes(256),
    };

    /// 24 buffers of 1 to 24 MB, one alive at a time.
    fn one_after_the_other(mode: PoolMode) -> Bytes {
        let mut pools = Pools::new(mode, DEVICE);
        for megabytes in 1..=24 {
            let buffer = pools.reserve(Bytes(megabytes * 1_000_000)).unwrap();
            pools.free(buffer);
        }
        assert_eq!(pools.in_use(), Bytes::ZERO);
        pools.reserved()
    }

    // Each size waits for its own: 1 + 2 + ... + 24 = 300 MB, and what the alignment adds to each: 1 MB is 3,906.25
    // times 256, so a size of k MB gains 3/4, 2/4, 1/4 or 0 of 256 for k = 1, 2, 3, 0 (mod 4): six times 384 bytes.
    #[test]
    fn exact_sizes_keep_one_buffer_of_every_size() {
        assert_eq!(
            one_after_the_other(PoolMode::ExactSizes),
            Bytes(300_000_000 + 6 * 384)
        );
    }

    // 1 and 2 MB go to a page of 8 MiB (up to 2 MiB), as do 7 and 8 MB (above 80 % of 8 MiB = 6.71 MB); 3 to 6 and 9 to
    // 16 MB to a page of 32 MiB (up to 16 MiB = 16.78 MB); 17 to 24 MB to the one of 128 MiB (80 % of 32 MiB is 26.8 MB).
    // One page of each: 168 MiB = 176.2 MB. cubecl itself was seen to hold 176 MB.
    #[test]
    fn pages_serve_many_sizes_with_one_page_each() {
        assert_eq!(one_after_the_other(PoolMode::Pages), Bytes(168 * MIB));
    }

    // Two of 15 MiB leave 2 MiB of a page of 32; the third opens a page and 12 fit beside it, not the 1 MiB, which
    // has pages of its own (8 MiB).
    #[test]
    fn a_size_has_one_pool_even_where_another_has_room() {
        let mut pools = Pools::new(PoolMode::Pages, DEVICE);
        let mut held = Vec::new();
        for (size, reserved) in [
            (15, 32),
            (15, 32),
            (15, 64),
            (12, 64),
            (1, 72),
            (3, 72),
            (3, 104),
        ] {
            held.push(pools.reserve(Bytes(size * MIB)).unwrap());
            assert_eq!(pools.reserved(), Bytes(reserved * MIB), "after {size} MiB");
        }
    }

    #[test]
    fn a_size_that_the_exact_pool_knows_never_goes_to_pages() {
        let mut pools = Pools::new(PoolMode::Pages, DEVICE);
        let _parameter = pools.reserve_long_lived(Bytes(3 * MIB));
        let gradient = pools.reserve(Bytes(3 * MIB)).unwrap();
        assert_eq!(pools.reserved(), Bytes(6 * MIB));
        pools.free(gradient);
        let _again = pools.reserve(Bytes(3 * MIB)).unwrap();
        assert_eq!(pools.reserved(), Bytes(6 * MIB));
        let _other = pools.reserve(Bytes(4 * MIB)).unwrap();
        assert_eq!(pools.reserved(), Bytes(6 * MIB + 32 * MIB));
    }

    #[test]
    fn pages_refuse_what_no_page_holds_and_exact_sizes_do_not() {
        let size = Bytes(128 * MIB + 1);
        let refused = Pools::new(PoolMode::Pages, DEVICE).reserve(size);
        assert_eq!(
            refused,
            Err(TooLarge {
                size: Bytes(128 * MIB + 256),
                largest: Bytes(128 * MIB)
            })
        );
        assert!(
            Pools::new(PoolMode::ExactSizes, DEVICE)
                .reserve(size)
                .is_ok()
        );
    }

    #[test]
    fn a_buffer_of_no_bytes_takes_nothing() {
        for mode in PoolMode::ALL {
            let mut pools = Pools::new(mode, DEVICE);
            let empty = pools.reserve(Bytes::ZERO).unwrap();
            assert_eq!(pools.reserved(), Bytes::ZERO);
            pools.free(empty);
        }
    }
}
