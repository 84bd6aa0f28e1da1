//! The memory resolution of the table.
//!
//! Memory is divided into slots of equal width. A row keeps at most one schedule per slot, the fastest that needs less
//! than the slot's end, with its need in exact bytes: the width determines how many schedules are kept, but rounds no
//! size. It depends on the chain, never on the budget, so every budget uses the same table.

use super::super::terms::Terms;

/// The value of stages^3 * slots that takes some ten milliseconds.
const CHEAP_WORK: u64 = 300_000_000;

/// The maximum number of slots where they cost almost nothing.
const MOST_CHEAP_SLOTS: u64 = 4_096;

/// Maximum of windows * slots of a table, with 16 bytes each: at most 2 GB, and less in practice, because most windows
/// have fewer steps than there are slots. The number of slots is reduced to stay within this.
const MOST_CELLS: u64 = 125_000_000;

/// Into how many slots the memory in which nothing is recomputed is divided; fewer where the table might pass 2 GB (from
/// about 700 stages on), more where they cost nothing.
const SLOTS: u64 = 500;

/// The bytes of a slot, for up to `most` bytes above those that are always held. If every size is a multiple of it, no
/// schedule is lost.
pub(super) fn slot(terms: &Terms, most: u64) -> u64 {
    let stages = terms.nodes.len() as u64;
    let cheap = CHEAP_WORK / stages.pow(3);
    let affordable = MOST_CELLS / (stages.pow(2) / 2 + 1);
    let divisor = common_divisor(terms);
    if most / divisor < SLOTS.max(cheap).min(affordable) {
        return divisor;
    }
    let slots = SLOTS.max(cheap.min(MOST_CHEAP_SLOTS)).min(affordable);
    most / slots.max(1) + 1
}

fn common_divisor(terms: &Terms) -> u64 {
    let of_nodes = terms.nodes.iter().flat_map(|node| {
        [
            node.forward_temp_bytes.0,
            node.grad_bytes.0,
            node.saved_bytes.0,
            node.tracked_temp_bytes.0,
            node.backward_temp_bytes.0,
        ]
    });
    let sizes = terms.x.iter().chain(&terms.y).copied().chain(of_nodes);
    let common = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    sizes.fold(0, common).max(1)
}
