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
//! The result is the fastest of: the steps of the table, the single-level plans (`single_levels.rs`), the plan with the
//! smallest peak, and the plan without recomputing. None of these depends on the budget, which only determines which of
//! them fit: so a larger budget never gives a slower plan, and [`Optimal::frontier`] has the plans for all budgets. For
//! a single budget, one table is solved, which ends at the budget.
//!
//! Cost: O(n^3 slots) time and O(n^2 slots) bytes, less in practice; see `table.rs`.

mod grid;
mod table;

use grid::Grid;
use rayon::prelude::*;
use table::{Stair, Table};

use super::single_levels::SingleLevels;
use super::smallest_peak::SmallestPeaks;
use super::source::{PlanSource, Slots};
use super::terms::Terms;
use super::{PlanError, none};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::plan::{Plan, keep_useful};
use crate::request::Planner;

const KIND: Planner = Planner::Optimal;

/// Into how many slots the memory in which nothing is recomputed is divided, to tell schedules apart; fewer where the
/// table might pass 2 GB (from about 700 stages on), more where they cost nothing.
const SLOTS: usize = 500;

/// Tolerance for the simulator's sums, which are rounded, unlike those of the table.
const ROUNDED: f64 = 1.0 - 1e-9;

/// All data about a chain that do not depend on the budget.
pub(crate) struct Optimal<'a> {
    chain: &'a Chain,
    terms: Terms,
    peaks: SmallestPeaks,
    grid: Grid,
    /// The smallest budget, and its plan.
    pub(crate) smallest: Plan,
    /// The fastest plan of all: nothing recomputed.
    fastest: Plan,
}

impl<'a> Optimal<'a> {
    pub(crate) fn new(chain: &'a Chain) -> Result<Optimal<'a>, PlanError> {
        let terms = Terms::new(chain);
        let peaks = SmallestPeaks::new(&terms);
        let (peak, schedule) = peaks.whole(&terms, chain);
        let smallest = Plan::new(chain, KIND, schedule, PlanSource::SmallestPeak);
        debug_assert_eq!(
            smallest.peak, peak,
            "the recurrence and the simulator disagree"
        );
        let plain = none(chain.stages.len())?;
        let fastest = Plan::new(chain, KIND, plain, PlanSource::Fastest);
        let most = (fastest.peak - chain.resident_bytes()).0;
        let grid = Grid::new(&terms, most, SLOTS);
        Ok(Optimal {
            chain,
            terms,
            peaks,
            grid,
            smallest,
            fastest,
        })
    }

    /// The best plan within `budget`, everything counted; `None` below the smallest peak.
    pub(crate) fn within(self, budget: Bytes) -> Result<Option<Plan>, PlanError> {
        if budget < self.smallest.peak {
            return Ok(None);
        }
        if budget >= self.fastest.peak {
            return Ok(Some(self.fastest));
        }
        let mut best = self.smallest.clone();
        for single in SingleLevels::new(self.chain)?.within(budget)? {
            best = best.or_faster(single);
        }
        let memory = (budget - self.chain.resident_bytes()).0;
        let optimizer = self.chain.optimizer.step_s.0;
        let table = self.table(memory);
        // The fastest first.
        for step in table
            .steps()
            .iter()
            .rev()
            .filter(|step| step.need <= memory)
        {
            if step.time * ROUNDED + optimizer > best.step.0 {
                break;
            }
            best = best.or_faster(self.plan(&table, *step));
        }
        Ok(Some(best))
    }

    /// The memory/time frontier, from the smallest peak to the largest: for every budget, the fastest of these plans
    /// that fits is as fast as the result of [`within`](Self::within).
    pub(crate) fn frontier(self) -> Result<Vec<Plan>, PlanError> {
        let table = self.table((self.fastest.peak - self.chain.resident_bytes()).0);
        let mut found: Vec<Plan> = table
            .steps()
            .par_iter()
            .map(|step| self.plan(&table, *step))
            .collect();
        drop(table);
        found.extend(SingleLevels::new(self.chain)?.frontier()?);
        found.extend([self.smallest, self.fastest]);
        keep_useful(&mut found, |plan| (plan.peak, plan.step));
        Ok(found)
    }

    /// The table for `memory` bytes above those that are always held.
    fn table(&self, memory: u64) -> Table<'_> {
        Table::solve(&self.terms, &self.peaks.windows, self.grid.width, memory)
    }

    fn plan(&self, table: &Table<'_>, step: Stair) -> Plan {
        let source = PlanSource::Slots(Slots {
            count: (step.need / self.grid.width) as usize + 1,
            bytes: Bytes(self.grid.width),
            exact: self.grid.exact,
        });
        let found = Plan::new(self.chain, KIND, table.schedule(step), source);
        debug_assert_eq!(
            found.peak,
            (self.chain.resident_bytes() + Bytes(step.need)).max(self.chain.optimizer_peak()),
            "the table and the simulator disagree"
        );
        found
    }
}
