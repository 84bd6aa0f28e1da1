//! An exact number of bytes, as whole slots and the bytes beyond them.

/// `slot * width + rest` bytes, with `rest` less than the width of a slot. Ordered as the bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    pub(super) slot: u32,
    pub(super) rest: u32,
}

impl Mark {
    pub(super) fn new(bytes: u64, width: u64) -> Mark {
        Mark {
            slot: (bytes / width) as u32,
            rest: (bytes % width) as u32,
        }
    }

    pub(super) fn bytes(self, width: u64) -> u64 {
        u64::from(self.slot) * width + u64::from(self.rest)
    }

    #[inline]
    pub(super) fn plus(self, other: Mark, width: u64) -> Mark {
        let rest = u64::from(self.rest) + u64::from(other.rest);
        let carry = u32::from(rest >= width);
        Mark {
            slot: self.slot + other.slot + carry,
            rest: (rest - u64::from(carry) * width) as u32,
        }
    }

    /// `None` where `other` is more.
    #[inline]
    pub(super) fn minus(self, other: Mark, width: u64) -> Option<Mark> {
        let borrow = u32::from(self.rest < other.rest);
        Some(Mark {
            slot: self.slot.checked_sub(other.slot + borrow)?,
            rest: (u64::from(self.rest) + u64::from(borrow) * width - u64::from(other.rest)) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Mark;

    #[test]
    fn adds_and_subtracts_as_bytes_do() {
        for width in 1..6 {
            let mark = |bytes| Mark::new(bytes, width);
            for a in 0..30 {
                for b in 0..30 {
                    assert_eq!(mark(a).plus(mark(b), width), mark(a + b));
                    assert_eq!(mark(a).minus(mark(b), width), a.checked_sub(b).map(mark));
                    assert_eq!(mark(a).cmp(&mark(b)), a.cmp(&b));
                }
                assert_eq!(mark(a).bytes(width), a);
            }
        }
    }
}
