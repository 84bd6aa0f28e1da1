//! The blocks of memory allocated and freed in an interval.

use rekindle_alloc::SizeCount;
use rekindle_plan::Bytes;

/// Counts of blocks, in as much detail as the meter has.
///
/// Created once and refilled, so that taking a census of the process's own allocator allocates nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Census {
    /// Blocks allocated and freed since the interval's start, by size. Small blocks may be left out. Empty if sizes are
    /// unknown.
    pub(super) sizes: Vec<SizeCount>,
    /// The number of all blocks and their bytes, if sizes are unknown (a GPU's pools).
    pub(super) all: Option<(u64, Bytes)>,
}

impl Default for Census {
    fn default() -> Self {
        Self {
            sizes: Vec::with_capacity(rekindle_alloc::SIZES),
            all: None,
        }
    }
}

/// Blocks that were allocated or freed: of one size, or, if sizes are unknown, the net change of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Whether the bytes increased.
    pub came: bool,
    /// Number of blocks. `None` if equally many blocks of other sizes were allocated and freed, or if the number of
    /// blocks and their bytes changed in opposite directions.
    pub count: Option<u64>,
    /// The size of each block, if known.
    pub block_bytes: Option<Bytes>,
    /// The bytes of all these blocks.
    pub bytes: Bytes,
}

impl Census {
    /// The changes since `before`, which was taken at the interval's start; the largest first.
    #[must_use]
    pub fn since(&self, before: &Self) -> Vec<Change> {
        if let (Some((blocks_before, bytes_before)), Some((blocks, bytes))) = (before.all, self.all)
        {
            let (came, more) = (bytes > bytes_before, blocks > blocks_before);
            let change = Change {
                came,
                count: (blocks != blocks_before && came == more)
                    .then(|| blocks.abs_diff(blocks_before)),
                block_bytes: None,
                bytes: Bytes(bytes.0.abs_diff(bytes_before.0)),
            };
            return Vec::from_iter((bytes != bytes_before).then_some(change));
        }
        let mut sizes = self.sizes.clone();
        sizes.sort_unstable_by_key(|count| std::cmp::Reverse(count.size));
        let change = |size: usize, count: usize, came: bool| {
            (count > 0).then_some(Change {
                came,
                count: Some(count as u64),
                block_bytes: Some(Bytes(size as u64)),
                bytes: Bytes((size * count) as u64),
            })
        };
        let changes = sizes.iter().flat_map(|count| {
            [
                change(count.size, count.came, true),
                change(count.size, count.went, false),
            ]
        });
        changes.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn together(blocks: u64, bytes: u64) -> Census {
        Census {
            sizes: Vec::new(),
            all: Some((blocks, Bytes(bytes))),
        }
    }

    #[test]
    fn a_balance_says_how_many_only_where_it_can() {
        let change = |before: Census, now: Census| {
            let changes = now.since(&before);
            changes
                .first()
                .map(|change| (change.came, change.count, change.bytes.0))
        };
        assert_eq!(
            change(together(2, 10), together(5, 40)),
            Some((true, Some(3), 30))
        );
        assert_eq!(
            change(together(5, 40), together(2, 10)),
            Some((false, Some(3), 30))
        );
        assert_eq!(
            change(together(5, 40), together(6, 10)),
            Some((false, None, 30))
        );
        assert_eq!(change(together(5, 40), together(5, 40)), None);
    }
}
