//! `optimal`: the least time under a budget among persistent schedules, nested recomputes included.
//!
//! Persistent means that what is stored stays until its backward pass. The dynamic program is that of Beaumont,
//! Eyraud-Dubois, Herrmann, Joly and Shilova (INRIA RR-9302; ACM TOMS 50(2) 2024; "rotor"), with parameter gradients
//! that accumulate during the backward pass; `table.rs` has the recurrence. Both memory conditions of the recorded branch are
//! tested: the widely copied implementation omits one of them and exceeds its budget on stages with large temporary bytes.
//!
//! The program is solved in exact bytes; for each window of stages, one schedule is kept per slot of memory: the width of a
//! slot determines how many schedules are kept, but rounds no size. If all sizes divided by their common divisor fit in the
//! slots, no schedule is lost, and the plan is optimal among persistent schedules (checked against exhaustive search; where a
//! tracked forward's temporary bytes differ from an untracked one's, rare chains have a slightly better schedule that is not
//! of this form).
//!
//! The best plan is one of: the steps of the table, of which the first has the smallest peak, and the plan without
//! recomputing. None of these depends on the budget, which only determines which of them fit: so a larger budget never gives
//! a slower plan. For a single budget, one table is solved, which ends there; below the smallest peak, one of a single slot.
//!
//! Cost: O(n^3 slots) time and O(n^2 slots) bytes, less in practice; see `table.rs`.

mod table;

use rayon::prelude::*;
use table::{Stair, Table};

use super::terms::Terms;
use crate::schedule::Recipe;

/// The value of stages^3 * slots that takes some ten milliseconds.
const CHEAP_WORK: u64 = 300_000_000;

/// The maximum number of slots where no schedule is lost and a few stages make them cost little: a megabyte for a window.
const MOST_EXACT_SLOTS: u64 = 1 << 16;

/// The maximum number of slots where they cost almost nothing.
const MOST_CHEAP_SLOTS: u64 = 4_096;

/// Maximum of windows * slots of a table, with 16 bytes each: at most 2 GB, and less in practice, because most windows
/// have fewer steps than there are slots. The number of slots is reduced to stay within this.
const MOST_CELLS: u64 = 125_000_000;

/// Into how many slots the memory in which nothing is recomputed is divided; fewer where the table might pass 2 GB (from
/// about 700 stages on), more where they cost nothing.
const SLOTS: u64 = 500;

/// Steps whose times differ by less are compared by the simulator, whose sums are rounded unlike those of the table.
const ROUNDED: f64 = 1.0 - 1e-9;

/// The schedules among which the best is for any budget, or for `within`: bytes above those that are always held.
pub(super) fn schedules(terms: &Terms, within: Option<u64>) -> Vec<Recipe> {
    let whole = terms.whole();
    let slot = slot(terms, whole);
    if let Some(room) = within {
        if room >= whole {
            return vec![Recipe::WHOLE];
        }
        // A table of one slot has what needs least, and takes little.
        let leanest = Table::solve(terms, slot, 0);
        let first = leanest.steps()[0];
        if room < first.need {
            return vec![Recipe::Nested(leanest.schedule(first))];
        }
    }
    let table = Table::solve(terms, slot, within.unwrap_or(whole));
    let steps = match within {
        Some(room) => fastest(table.steps(), room),
        None => table.steps(),
    };
    let nested = steps.par_iter().map(|step| table.schedule(*step));
    let mut found: Vec<Recipe> = nested.map(Recipe::Nested).collect();
    found.push(Recipe::WHOLE);
    found
}

/// The fastest step that needs at most `room`, and those that are as fast to within rounding.
fn fastest(steps: &[Stair], room: u64) -> &[Stair] {
    let fitting = &steps[..steps.partition_point(|step| step.need <= room)];
    let least = fitting.last().map_or(0.0, |step| step.time);
    &fitting[fitting.partition_point(|step| step.time * ROUNDED > least)..]
}

/// The bytes of a slot, for up to `most` bytes above those that are always held. If every size is a multiple of it, no
/// schedule is lost. It depends on the chain, never on the budget, so every budget uses the same table.
fn slot(terms: &Terms, most: u64) -> u64 {
    let stages = terms.nodes.len() as u64;
    let cheap = (CHEAP_WORK / stages.pow(3)).min(MOST_EXACT_SLOTS);
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
