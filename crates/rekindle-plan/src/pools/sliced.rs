//! Pools of equal pages: which there are on a device, and which sizes each accepts.
//!
//! With M the device's largest page and up(n) = n rounded up to the alignment, cubecl 0.10 derives its default pools
//! (`SubSlices` in `memory_management/memory_manage.rs`) so, from large to small:
//!
//! ```text
//! P_0 = M rounded down to the alignment      accepts sizes up to P_0
//! P_k = up(P_{k-1} / 4)   (from M, k >= 1)   accepts sizes up to P_k / 2^k, while P_{k-1} >= 32 MiB
//! ```
//!
//! and asks them from small to large. A pool also accepts a size that fills more than 80 % of a page
//! (`memory_pool/sliced_pool.rs`). An accepted size goes to the first page with room, in the order in which pages were
//! taken, else to a new page; no later pool is tried. A page is never given back.

use super::PoolDevice;
use super::page::Page;
use crate::bytes::Bytes;

/// Page sizes are quartered while they are at least this.
const QUARTERED_FROM: u64 = 32 << 20;

/// Pages of one size.
#[derive(Clone, Debug)]
pub(super) struct SlicedPool {
    page_bytes: Bytes,
    /// The largest size that is accepted although it leaves much of a page empty.
    most_bytes: Bytes,
    pages: Vec<Page>,
}

/// Where a slice lies in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    page: usize,
    offset: u64,
}

impl SlicedPool {
    /// The pools of a device, in the order in which they are asked.
    pub(super) fn of(device: PoolDevice) -> Vec<SlicedPool> {
        let largest = device.largest_page();
        let mut pools = vec![SlicedPool::new(largest, largest)];
        let (mut page, mut halvings) = (device.max_page_bytes.0, 0);
        while page >= QUARTERED_FROM {
            let quarter = device.align(Bytes(page / 4)).0;
            // Only where the alignment is itself about as large as a page.
            if quarter >= page {
                break;
            }
            page = quarter;
            halvings += 1;
            pools.push(SlicedPool::new(Bytes(page), Bytes(page >> halvings)));
        }
        pools.reverse();
        pools
    }

    fn new(page_bytes: Bytes, most_bytes: Bytes) -> SlicedPool {
        SlicedPool {
            page_bytes,
            most_bytes,
            pages: Vec::new(),
        }
    }

    /// Whether buffers of this size belong here.
    pub(super) fn accepts(&self, size: Bytes) -> bool {
        let nearly_fills = self
            .page_bytes
            .checked_sub(size)
            .is_some_and(|unused| unused.0.saturating_mul(5) < self.page_bytes.0);
        size <= self.most_bytes || nearly_fills
    }

    /// Places a slice of an accepted size. A new page is taken where no page has room.
    pub(super) fn take(&mut self, size: Bytes) -> Option<Spot> {
        for (page, slices) in self.pages.iter_mut().enumerate() {
            if let Some(offset) = slices.take(size) {
                return Some(Spot { page, offset });
            }
        }
        let mut slices = Page::new(self.page_bytes);
        let offset = slices.take(size)?;
        self.pages.push(slices);
        Some(Spot {
            page: self.pages.len() - 1,
            offset,
        })
    }

    /// Gives back a slice.
    pub(super) fn give_back(&mut self, spot: Spot, size: Bytes) {
        self.pages[spot.page].give_back(spot.offset, size);
    }

    /// All pages together.
    pub(super) fn reserved(&self) -> Bytes {
        Bytes(self.page_bytes.0.saturating_mul(self.pages.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::SlicedPool;
    use crate::bytes::Bytes;
    use crate::pools::PoolDevice;

    const MIB: u64 = 1 << 20;

    fn pages(largest: u64, alignment: u64) -> Vec<(u64, u64)> {
        SlicedPool::of(PoolDevice {
            max_page_bytes: Bytes(largest),
            alignment: Bytes(alignment),
        })
        .iter()
        .map(|pool| (pool.page_bytes.0, pool.most_bytes.0))
        .collect()
    }

    // 128 MiB >= 32 MiB: a quarter is 32 MiB, of which half, 16 MiB, is accepted. 32 MiB >= 32 MiB: a quarter is
    // 8 MiB, of which a quarter, 2 MiB, is accepted. 8 MiB < 32 MiB: done.
    #[test]
    fn page_sizes_of_a_device_with_a_largest_page_of_128_mib() {
        let expected = [(8, 2), (32, 16), (128, 128)].map(|(page, most)| (page * MIB, most * MIB));
        assert_eq!(pages(128 * MIB, 256), expected);
    }

    // 36,000,000,123 / 4 = 9,000,000,030 up to 512: 9,000,000,512; half of it 4,500,000,256. A quarter: 2,250,000,128,
    // up to 512: 2,250,000,384; a quarter of it 562,500,096. A quarter: 562,500,096; an eighth of it 70,312,512. A
    // quarter: 140,625,024, up to 512: 140,625,408; 1/16: 8,789,088. A quarter: 35,156,352, up to 512: 35,156,480; 1/32:
    // 1,098,640. That is above 33,554,432. A quarter: 8,789,120, up to 512: 8,789,504; 1/64: 137,336 (.0). Done.
    // The largest: 36,000,000,123 down to 512: 36,000,000,000.
    #[test]
    fn page_sizes_follow_the_alignment() {
        let expected = [
            (8_789_504, 137_336),
            (35_156_480, 1_098_640),
            (140_625_408, 8_789_088),
            (562_500_096, 70_312_512),
            (2_250_000_384, 562_500_096),
            (9_000_000_512, 4_500_000_256),
            (36_000_000_000, 36_000_000_000),
        ];
        assert_eq!(pages(36_000_000_123, 512), expected);
    }

    #[test]
    fn a_small_device_has_one_pool() {
        assert_eq!(pages(31 * MIB, 1), [(31 * MIB, 31 * MIB)]);
    }

    #[test]
    fn an_alignment_as_large_as_a_page_ends() {
        assert_eq!(pages(32 * MIB, 32 * MIB), [(32 * MIB, 32 * MIB)]);
    }

    // 20 % of 8 MiB is 1.6 MiB: sizes above 6.4 MiB leave less than that.
    #[test]
    fn a_pool_accepts_small_sizes_and_those_that_nearly_fill_a_page() {
        let pool = SlicedPool::new(Bytes(80), Bytes(20));
        for (size, accepted) in [(20, true), (21, false), (64, false), (65, true), (80, true)] {
            assert_eq!(pool.accepts(Bytes(size)), accepted, "{size}");
        }
        assert!(!pool.accepts(Bytes(81)));
    }
}
