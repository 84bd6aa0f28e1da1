//! One page: a contiguous piece of device memory that is handed out in slices.
//!
//! A slice goes to the first gap that has room, at the gap's start; what the slice leaves of the gap stays a gap. A
//! freed slice becomes a gap and joins its neighbours. cubecl joins neighbouring gaps only before it searches a page,
//! not when a slice is freed: a search meets the same gaps.
//!
//! A search costs O(gaps), a free O(log gaps).

use std::collections::BTreeMap;

use crate::bytes::Bytes;

/// The gaps of a page.
#[derive(Clone, Debug)]
pub(super) struct Page {
    /// The size of each gap by its offset. No two of them touch.
    gaps: BTreeMap<u64, u64>,
}

impl Page {
    /// A page that is one gap.
    pub(super) fn new(size: Bytes) -> Page {
        Page {
            gaps: BTreeMap::from([(0, size.0)]),
        }
    }

    /// Takes a slice from the first gap that has room, and says at which offset.
    pub(super) fn take(&mut self, size: Bytes) -> Option<u64> {
        let (&offset, &gap) = self.gaps.iter().find(|&(_, &gap)| gap >= size.0)?;
        self.gaps.remove(&offset);
        if gap > size.0 {
            self.gaps.insert(offset + size.0, gap - size.0);
        }
        Some(offset)
    }

    /// Gives back a slice that [`take`](Page::take) placed at this offset.
    pub(super) fn give_back(&mut self, offset: u64, size: Bytes) {
        let (mut start, mut end) = (offset, offset + size.0);
        if let Some((&before, &gap)) = self.gaps.range(..offset).next_back()
            && before + gap == start
        {
            self.gaps.remove(&before);
            start = before;
        }
        if let Some(after) = self.gaps.remove(&end) {
            end += after;
        }
        self.gaps.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use super::Page;
    use crate::bytes::Bytes;

    #[test]
    fn a_slice_goes_to_the_first_gap_with_room() {
        let mut page = Page::new(Bytes(32));
        // |4|15|8|4|1 left|
        assert_eq!(page.take(Bytes(4)), Some(0));
        assert_eq!(page.take(Bytes(15)), Some(4));
        assert_eq!(page.take(Bytes(8)), Some(19));
        assert_eq!(page.take(Bytes(4)), Some(27));
        assert_eq!(page.take(Bytes(8)), None);
        page.give_back(4, Bytes(15));
        assert_eq!(page.take(Bytes(1)), Some(4), "not the last gap, which fits");
        assert_eq!(page.take(Bytes(9)), Some(5));
        assert_eq!(page.take(Bytes(9)), None, "5 from 14 on, and 1 at the end");
    }

    #[test]
    fn neighbouring_gaps_join() {
        let mut page = Page::new(Bytes(12));
        for offset in [0, 4, 8] {
            assert_eq!(page.take(Bytes(4)), Some(offset));
        }
        page.give_back(0, Bytes(4));
        page.give_back(8, Bytes(4));
        assert_eq!(page.take(Bytes(5)), None, "two gaps of 4 around a slice");
        page.give_back(4, Bytes(4));
        assert_eq!(page.take(Bytes(12)), Some(0));
    }
}
