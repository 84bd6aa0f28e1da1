//! A pool whose buffers serve one size each: cubecl 0.10's persistent pool (`memory_pool/persistent_pool.rs`).
//!
//! A freed buffer waits for the next one of its size; if none waits, a buffer is taken from the device. So
//!
//! ```text
//! reserved = sum over sizes of   size x the most of that size that were held at once
//! ```

use std::collections::BTreeMap;

use crate::bytes::Bytes;

/// The buffers of each size that were taken from the device.
#[derive(Clone, Debug, Default)]
pub(super) struct ExactSizes {
    /// How many buffers of each size are free.
    free: BTreeMap<Bytes, usize>,
    reserved: Bytes,
}

impl ExactSizes {
    /// Whether a buffer of this size was ever taken.
    pub(super) fn knows(&self, size: Bytes) -> bool {
        self.free.contains_key(&size)
    }

    /// Takes a buffer.
    pub(super) fn take(&mut self, size: Bytes) {
        let free = self.free.entry(size).or_default();
        match free.checked_sub(1) {
            Some(left) => *free = left,
            None => self.reserved += size,
        }
    }

    /// Gives a buffer back.
    pub(super) fn give_back(&mut self, size: Bytes) {
        *self.free.entry(size).or_default() += 1;
    }

    /// All buffers, held and free.
    pub(super) fn reserved(&self) -> Bytes {
        self.reserved
    }
}

#[cfg(test)]
mod tests {
    use super::ExactSizes;
    use crate::bytes::Bytes;

    #[test]
    fn a_free_buffer_serves_only_its_own_size() {
        let mut pool = ExactSizes::default();
        pool.take(Bytes(8));
        pool.take(Bytes(8));
        pool.give_back(Bytes(8));
        assert_eq!(pool.reserved(), Bytes(16));
        pool.take(Bytes(8));
        assert_eq!(pool.reserved(), Bytes(16), "the free one serves");
        pool.give_back(Bytes(8));
        pool.take(Bytes(4));
        assert_eq!(pool.reserved(), Bytes(20), "the free one is too large");
    }
}
