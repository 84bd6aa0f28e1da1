//! How bytes are cut into slots.
//!
//! The size of a slot must not depend on the budget: it would round other sizes at a larger budget, and a plan could
//! become slower where it has more room. So each chain has its own ladder of levels. The first reaches up to the
//! memory with which nothing needs recomputing, each next one half as far, with half the slot; the last cuts by the
//! common divisor of all sizes, where nothing is rounded, and takes more slots than were asked for where the chain is
//! so short that they cost nothing. A budget is answered by the finest level that reaches it, and
//! by the finer ones below it at their own top: what any smaller budget may use, a larger one may use too. At a level
//! the budget is between half of the slots and all of them.

use super::super::terms::Terms;

/// Stages cubed times slots that take some ten milliseconds.
const CHEAP_WORK: u64 = 100_000_000;

/// Windows times slots of the largest table: some 2 GB. More slots than that are not used.
const MOST_CELLS: u64 = 350_000_000;

/// One way to cut memory into slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    /// Bytes of one slot.
    pub(crate) slot: u64,
    /// The most memory that the level is used for, in bytes above what is always resident.
    pub(crate) top: u64,
    /// Whether every size is a whole number of slots.
    pub(crate) exact: bool,
}

impl Level {
    /// How many slots to solve for when `memory` bytes are there. Where sizes are rounded up, a plan for more slots may
    /// still fit in exact bytes: 0.4 slots more for each of the `stages`, and at most half as many again, are
    /// tried.
    pub(crate) fn slots(self, memory: u64, stages: usize) -> usize {
        let slots = (memory.min(self.top) / self.slot) as usize;
        if self.exact {
            slots
        } else {
            slots + (slots / 2).min(stages * 2 / 5)
        }
    }
}

/// The levels of a chain that needs between `least` and `most` bytes, the one that reaches furthest first.
pub(crate) fn levels(terms: &Terms, least: u64, most: u64, slots: usize) -> Vec<Level> {
    let divisor = common_divisor(terms);
    let windows = (terms.nodes.len() as u64).pow(2) / 2 + 1;
    let slots = (slots as u64).min(MOST_CELLS / windows).max(1);
    let exact_top = divisor
        .saturating_mul(slots.max(cheap_slots(terms.nodes.len())))
        .min(most);
    let mut levels = Vec::new();
    let mut top = most;
    while top > exact_top && top >= least {
        levels.push(Level {
            slot: top.div_ceil(slots),
            top,
            exact: false,
        });
        top /= 2;
    }
    if exact_top >= least {
        levels.push(Level {
            slot: divisor,
            top: exact_top,
            exact: true,
        });
    }
    levels
}

/// So many slots that a chain of `nodes` stages is solved in no time: being exact is free there.
fn cheap_slots(nodes: usize) -> u64 {
    CHEAP_WORK / (nodes as u64).pow(3)
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
