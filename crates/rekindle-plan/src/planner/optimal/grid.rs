//! How finely the table tells budgets apart.
//!
//! Memory is cut into slots of equal width. A row keeps at most one schedule per slot, the fastest that needs less than
//! the slot's end, with its need in exact bytes: the width decides how many schedules are told apart, it rounds no
//! size. It depends on the chain and the number of slots that was asked for, never on the budget, so every budget reads
//! the same table.

use super::super::terms::Terms;

/// Stages cubed times slots that take some ten milliseconds.
const CHEAP_WORK: u64 = 300_000_000;

/// More slots than this are never free.
const MOST_CHEAP_SLOTS: u64 = 4_096;

/// Windows times slots of the largest table, of 16 bytes each: at most 2 GB, and a part of that in practice, as most windows
/// have fewer steps than there are slots. More slots than that are not used.
const MOST_CELLS: u64 = 125_000_000;

/// The slots of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    /// Bytes of one slot.
    pub(super) width: u64,
    /// Whether every size is a whole number of slots: then no schedule is lost.
    pub(super) exact: bool,
}

impl Grid {
    /// The slots for up to `most` bytes above what is always resident: as many as were asked for, more where the chain
    /// is so short that they cost nothing, fewer where the table might take more than 2 GB.
    pub(super) fn new(terms: &Terms, most: u64, slots: usize) -> Grid {
        let stages = terms.nodes.len() as u64;
        let cheap = CHEAP_WORK / stages.pow(3);
        let affordable = MOST_CELLS / (stages.pow(2) / 2 + 1);
        let divisor = common_divisor(terms);
        let asked = slots as u64;
        if most / divisor < asked.max(cheap).min(affordable) {
            return Grid {
                width: divisor,
                exact: true,
            };
        }
        let slots = asked.max(cheap.min(MOST_CHEAP_SLOTS)).min(affordable);
        Grid {
            width: most / slots.max(1) + 1,
            exact: false,
        }
    }
}

fn common_divisor(terms: &Terms) -> u64 {
    let mut divisor = 0;
    let mut take = |bytes: u64| {
        let (mut a, mut b) = (divisor, bytes);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        divisor = a;
    };
    terms.x.iter().chain(&terms.y).copied().for_each(&mut take);
    for node in &terms.nodes {
        take(node.forward_temp);
        take(node.grad);
        for way in &node.ways {
            take(way.saved);
            take(way.tracked_temp);
            take(way.backward_temp);
        }
    }
    divisor.max(1)
}
