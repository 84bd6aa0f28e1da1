//! `optimal`: the least time under a budget among persistent schedules, nested recomputes included.
//!
//! Persistent means that what is stored stays until its backward pass. The dynamic program is that of Beaumont,
//! Eyraud-Dubois, Herrmann, Joly and Shilova (INRIA RR-9302; ACM TOMS 50(2) 2024; "rotor"), with parameter gradients
//! that accumulate during the backward pass; `table.rs` has the recurrence. Both memory
//! conditions of the recorded branch are tested: the widely copied implementation omits one of them and exceeds its
//! budget on stages with large temporary bytes.
//!
//! The program is solved in exact bytes; for each window of stages, one schedule is kept per slot of memory
//! (`grid.rs`). If all sizes divided by their common divisor fit in the slots, no schedule is lost, and the plan is
//! optimal among persistent schedules (checked against exhaustive search; where a tracked forward's temporary bytes
//! differ from an untracked one's, rare chains have a slightly better schedule that is not of this form).
//!
//! The best plan is one of: the steps of the table, of which the first has the smallest peak, and the plan without
//! recomputing. None of these depends on the budget, which only determines which of them fit: so a larger budget never gives
//! a slower plan. For a single budget, one table is solved, which ends there.
//!
//! Cost: O(n^3 slots) time and O(n^2 slots) bytes, less in practice; see `table.rs`.

mod grid;
mod table;

use rayon::prelude::*;
use table::{Stair, Table};

use super::Recipe;
use super::terms::Terms;

/// Steps whose times differ by less are compared by the simulator, whose sums are rounded unlike those of the table.
const ROUNDED: f64 = 1.0 - 1e-9;

/// The schedules among which the best is for any budget, or for `within`: bytes above those that are always held.
pub(super) fn schedules(terms: &Terms, within: Option<u64>) -> Vec<Recipe> {
    let whole = terms.whole();
    if within.is_some_and(|room| room >= whole) {
        return vec![Recipe::WHOLE];
    }
    let slot = grid::slot(terms, whole);
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

/// The fastest step that needs at most `room`, and those that are as fast to within rounding; the first if none does.
fn fastest(steps: &[Stair], room: u64) -> &[Stair] {
    let fitting = steps.partition_point(|step| step.need <= room).max(1);
    let least = steps[fitting - 1].time;
    let fitting = &steps[..fitting];
    &fitting[fitting.partition_point(|step| step.time * ROUNDED > least)..]
}
