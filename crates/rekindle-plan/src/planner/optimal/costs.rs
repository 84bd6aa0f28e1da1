//! What the recurrence adds and compares: bytes as [`Mark`]s, and whole numbers of a small unit of time.
//!
//! A time is rounded down to a multiple of the unit, a part in 2^29 of the slowest schedule's time, so that sums are
//! exact in any order, and are never more than the real time. Bytes beyond the table are put just above its end:
//! nothing is asked for there.

use super::super::terms::Terms;
use super::mark::Mark;

/// No schedule, in units of time. Sums of three of it are still numbers.
pub(super) const INFINITE: u32 = 1 << 30;

/// The costs of a chain.
pub(super) struct Costs<'a> {
    pub(super) terms: &'a Terms,
    /// Bytes of one slot.
    pub(super) width: u64,
    /// The last slot of the table.
    pub(super) slots: u32,
    /// Seconds of one unit of time.
    unit: f64,
    /// Units of time of stages 0..i run forward.
    forwards: Vec<u64>,
    /// The sizes of the stored a_i.
    stored: Vec<Mark>,
    /// G(t).
    later_grads: Vec<Mark>,
    /// `sweeps[s * n + j - 1]`: the largest bytes of the untracked forwards from s to a_j.
    sweeps: Vec<u64>,
}

/// One way to record stage s before the rest of s..t.
pub(super) struct Recorded {
    /// The way's number.
    pub(super) number: usize,
    /// all(s,t) - G(t).
    pub(super) all: Mark,
    /// X.
    pub(super) saved: Mark,
    pub(super) time: u32,
}

impl<'a> Costs<'a> {
    /// The costs for a table of the slots 0 to `slots`, in which no schedule that matters takes longer than `slowest`
    /// seconds.
    pub(super) fn new(terms: &'a Terms, width: u64, slots: u32, slowest: f64) -> Costs<'a> {
        let unit = if slowest > 0.0 {
            slowest / f64::from(INFINITE / 2)
        } else {
            1.0
        };
        let n = terms.nodes.len();
        let mut sweeps = vec![0; n * n];
        for s in 0..n {
            let mut most = terms.forward_peak(s, true);
            for j in s + 1..n {
                sweeps[s * n + j - 1] = most;
                most = most.max(terms.forward_peak(j, false));
            }
        }
        let mut costs = Costs {
            terms,
            width,
            slots,
            unit,
            forwards: vec![0],
            stored: Vec::new(),
            later_grads: Vec::new(),
            sweeps,
        };
        costs.stored = terms.x.iter().map(|&bytes| costs.mark(bytes)).collect();
        // All of them are there at the end of any schedule, so none of these is far beyond a table's end.
        let grads = terms.later_grads.iter();
        costs.later_grads = grads.map(|&bytes| Mark::new(bytes, width)).collect();
        let mut sum = 0;
        for node in &terms.nodes {
            sum += u64::from(costs.units(node.forward));
            costs.forwards.push(sum);
        }
        costs
    }

    /// The number of stages, the loss included.
    pub(super) fn len(&self) -> usize {
        self.terms.nodes.len()
    }

    /// Just above the table, where everything out of reach is put.
    pub(super) fn beyond(&self) -> Mark {
        Mark {
            slot: self.slots + 1,
            rest: 0,
        }
    }

    /// So many bytes, or what is just above the table.
    pub(super) fn mark(&self, bytes: u64) -> Mark {
        if bytes / self.width > u64::from(self.slots) {
            self.beyond()
        } else {
            Mark::new(bytes, self.width)
        }
    }

    fn units(&self, seconds: f64) -> u32 {
        // A cast of a float stops at the ends of the integer.
        ((seconds / self.unit) as u32).min(INFINITE)
    }

    /// At least so many seconds; a float's rounding is allowed for.
    pub(super) fn seconds(&self, units: u32) -> f64 {
        const SUMS_OF_FLOATS: f64 = 1.0 - 1e-9;
        f64::from(units) * self.unit * SUMS_OF_FLOATS
    }

    /// The largest bytes of the untracked forwards from s to a_j, the inner part of null(s,j,t). It grows with j.
    #[inline]
    pub(super) fn sweep_bytes(&self, s: usize, j: usize) -> u64 {
        self.sweeps[s * self.len() + j - 1]
    }

    /// null(s,j,t) - G(t), of these sweep bytes.
    #[inline]
    pub(super) fn null(&self, t: usize, sweep_bytes: u64) -> Mark {
        self.mark(self.terms.y[t + 1] + sweep_bytes)
    }

    /// Time of the forwards from s to a_j.
    #[inline]
    pub(super) fn sweep(&self, s: usize, j: usize) -> u32 {
        (self.forwards[j] - self.forwards[s]).min(u64::from(INFINITE)) as u32
    }

    /// x_j.
    #[inline]
    pub(super) fn stored(&self, j: usize) -> Mark {
        self.stored[j]
    }

    /// G(j-1) - G(t): the gradients that stages j..t add.
    #[inline]
    pub(super) fn grads(&self, j: usize, t: usize) -> Mark {
        let grads = self.later_grads[j - 1].minus(self.later_grads[t], self.width);
        grads.unwrap_or_default()
    }

    /// The ways to record s before the rest of s..t.
    pub(super) fn ways(&self, s: usize, t: usize) -> impl Iterator<Item = Recorded> {
        let ways = self.terms.nodes[s].ways.iter().enumerate();
        ways.map(move |(number, way)| Recorded {
            number,
            all: self.mark(self.terms.all(s, t, way)),
            saved: self.mark(way.saved),
            time: self.units(way.seconds),
        })
    }
}
