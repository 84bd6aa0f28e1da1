//! What the recurrence adds and compares, in slots and seconds.
//!
//! All slots are capped just above the table's largest: nothing is asked for there.

use super::super::repeats::Repeats;
use super::super::terms::Terms;
use super::rounding::Rounded;
use super::time::Time;

/// The costs of a chain, with memory cut into slots.
pub(super) struct Costs<'a> {
    pub(super) terms: &'a Terms,
    pub(super) rounded: Rounded,
    /// Bytes of one slot.
    slot: u64,
    /// The largest slot of the table.
    pub(super) slots: usize,
    /// Time of stages 0..i run forward.
    forwards: Vec<f64>,
    /// `sweeps[s * n + j - 1]`: the largest bytes of the untracked forwards from s to a_j.
    sweeps: Vec<u64>,
}

/// One way to record stage s before the rest of s..t.
pub(super) struct Recorded<T> {
    /// The way's number.
    pub(super) number: usize,
    /// Slots of all(s,t) - G(t).
    pub(super) all: usize,
    /// Slots of X.
    pub(super) saved: usize,
    pub(super) time: T,
}

impl<'a> Costs<'a> {
    pub(super) fn new(terms: &'a Terms, repeats: &Repeats, slot: u64, slots: usize) -> Costs<'a> {
        let mut forwards = vec![0.0];
        for node in &terms.nodes {
            forwards.push(forwards[forwards.len() - 1] + node.forward);
        }
        let n = terms.nodes.len();
        let mut sweeps = vec![0; n * n];
        for s in 0..n {
            let mut most = terms.forward_peak(s, true);
            for j in s + 1..n {
                sweeps[s * n + j - 1] = most;
                most = most.max(terms.forward_peak(j, false));
            }
        }
        Costs {
            terms,
            rounded: Rounded::new(terms, slot, repeats),
            slot,
            slots,
            forwards,
            sweeps,
        }
    }

    /// The number of stages, the loss included.
    pub(super) fn len(&self) -> usize {
        self.terms.nodes.len()
    }

    /// The slot just above the table, where everything out of reach is put.
    pub(super) fn beyond(&self) -> usize {
        self.slots + 1
    }

    fn in_slots(&self, bytes: u64) -> usize {
        bytes.div_ceil(self.slot).min(self.beyond() as u64) as usize
    }

    /// The largest bytes of the untracked forwards from s to a_j, the inner part of null(s,j,t). It grows with j.
    #[inline]
    pub(super) fn sweep_bytes(&self, s: usize, j: usize) -> u64 {
        self.sweeps[s * self.len() + j - 1]
    }

    /// In slots: null(s,j,t) - G(t), of these sweep bytes.
    #[inline]
    pub(super) fn null(&self, t: usize, sweep_bytes: u64) -> usize {
        self.in_slots(self.terms.y[t + 1] + sweep_bytes)
    }

    /// Time of the forwards from s to a_j.
    #[inline]
    pub(super) fn sweep<T: Time>(&self, s: usize, j: usize) -> T {
        T::from_seconds(self.forwards[j] - self.forwards[s])
    }

    /// Slots of a stored a_j.
    #[inline]
    pub(super) fn stored(&self, j: usize) -> usize {
        self.rounded.x[j]
    }

    /// Slots of the gradients that stages j..t add.
    #[inline]
    pub(super) fn grads(&self, j: usize, t: usize) -> usize {
        self.rounded.grads_between(self.terms, j, t)
    }

    /// The ways to record s before the rest of s..t.
    pub(super) fn ways<T: Time>(&self, s: usize, t: usize) -> impl Iterator<Item = Recorded<T>> {
        let ways = self.terms.nodes[s].ways.iter().enumerate();
        ways.map(move |(number, way)| Recorded {
            number,
            all: self.in_slots(self.terms.all(s, t, way)),
            saved: self.in_slots(way.saved),
            time: T::from_seconds(way.seconds),
        })
    }
}
