//! `optimal`: the least time under a budget among persistent schedules, nested recomputes included.
//!
//! Persistent means: what is stored stays until its backward. The program is that of Beaumont, Eyraud-Dubois, Herrmann,
//! Joly and Shilova (INRIA RR-9302; ACM TOMS 50(2) 2024; "rotor"), with parameter gradients that grow as the backward
//! goes, and with alternatives; `table.rs` states it. Both memory conditions of the recorded branch are tested: the widely
//! copied code of this program leaves one out and exceeds its budget on stages with large temporary bytes.
//!
//! The program is solved in exact bytes; of each window of stages one schedule is kept per slot of memory (`grid.rs`).
//! When all sizes divided by their common divisor fit in the slots, none is lost, and the plan is optimal among
//! persistent schedules (checked against exhaustive search; where a tracked forward's temporary bytes differ from an
//! untracked one's, rare chains have a slightly better schedule that is not of this form).
//!
//! The answer is the fastest of: the steps of the table, the single-level plans (`single_levels.rs`), the plan of
//! the smallest peak, and the one that recomputes nothing. None of these depends on the budget, only which of them fit:
//! so a larger budget never makes the answer slower, and [`Optimal::frontier`] has the answer for every budget. A budget
//! solves one table, which ends there.
//!
//! Cost: O(n^3 slots) time and O(n^2 slots) bytes, with less than that in practice, see `table.rs`.

mod costs;
mod grid;
mod mark;
mod outline;
mod row;
mod table;
mod tile;

use grid::Grid;
use rayon::prelude::*;
use row::WIDEST;
use table::{Step, Table};

use super::candidate::{Candidate, useful};
use super::error::check_length;
use super::kind::PlannerKind;
use super::persistent::{Choice, emit};
use super::single_levels::SingleLevels;
use super::smallest_peak::SmallestPeaks;
use super::source::{Slots, Source};
use super::terms::Terms;
use super::{MOST_STAGES_OF_WINDOWS, PlanError};
use crate::bytes::Bytes;
use crate::chain::Chain;

/// Everything about a chain that does not depend on the budget.
pub(crate) struct Optimal<'a> {
    chain: &'a Chain,
    /// In units of `unit` bytes.
    terms: Terms,
    peaks: SmallestPeaks,
    unit: u64,
    grid: Grid,
    /// The smallest budget, and its plan.
    pub(crate) smallest: Candidate,
    /// The fastest plan of all: nothing recomputed, every stage recorded in its fastest way.
    fastest: Candidate,
}

impl<'a> Optimal<'a> {
    pub(crate) fn new(chain: &'a Chain, slots: usize) -> Result<Optimal<'a>, PlanError> {
        check_length(
            PlannerKind::Optimal,
            chain.stages.len(),
            MOST_STAGES_OF_WINDOWS,
        )?;
        let terms = Terms::new(chain);
        let peaks = SmallestPeaks::new(&terms);
        let (peak, schedule) = peaks.whole(&terms, chain)?;
        let smallest = Candidate::new(chain, schedule, Source::SmallestPeak)?;
        debug_assert_eq!(
            smallest.peak, peak,
            "the recurrence and the simulator disagree"
        );
        let fastest = fastest(chain, &terms)?;
        let most = (fastest.peak - chain.resident_bytes()).0;
        let grid = Grid::new(&terms, most, slots);
        // A need within a slot has 32 bits. That is enough for exact bytes up to some terabytes.
        let unit = grid.width.div_ceil(WIDEST);
        let (terms, peaks, grid) = if unit == 1 {
            (terms, peaks, grid)
        } else {
            let terms = terms.in_units(unit);
            let grid = Grid::new(&terms, most / unit, slots);
            let peaks = SmallestPeaks::new(&terms);
            (terms, peaks, grid)
        };
        Ok(Optimal {
            chain,
            terms,
            peaks,
            unit,
            grid,
            smallest,
            fastest,
        })
    }

    /// The best plan within `budget`, everything counted; `None` below the smallest peak.
    pub(crate) fn within(self, budget: Bytes) -> Result<Option<Candidate>, PlanError> {
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
        let fits = |step: &Step| step.bytes <= memory / self.unit;
        // The fastest first. Their times are known but for a rounding.
        for step in table.steps().into_iter().rev().filter(fits) {
            if step.at_least + optimizer > best.time {
                break;
            }
            best = best.or_faster(self.candidate(&table, step)?);
        }
        Ok(Some(best))
    }

    /// The useful plans, from the smallest peak to the largest: for every budget, the fastest of those that fit is as
    /// fast as what [`within`](Self::within) returns.
    pub(crate) fn frontier(self) -> Result<Vec<Candidate>, PlanError> {
        let table = self.table((self.fastest.peak - self.chain.resident_bytes()).0);
        let mut found: Vec<Candidate> = table
            .steps()
            .into_par_iter()
            .map(|step| self.candidate(&table, step))
            .collect::<Result<_, _>>()?;
        drop(table);
        found.extend(SingleLevels::new(self.chain)?.frontier()?);
        found.extend([self.smallest, self.fastest]);
        Ok(useful(found))
    }

    /// The table for so many bytes above what is always resident.
    fn table(&self, memory: u64) -> Table<'_> {
        Table::solve(
            &self.terms,
            &self.peaks,
            self.grid.width,
            memory / self.unit,
            self.smallest.time,
        )
    }

    fn candidate(&self, table: &Table<'_>, step: Step) -> Result<Candidate, PlanError> {
        let source = Source::Slots(Slots {
            count: (step.bytes / self.grid.width) as usize + 1,
            bytes: Bytes(self.grid.width * self.unit),
            exact: self.grid.exact && self.unit == 1,
        });
        let found = Candidate::new(self.chain, table.schedule(step)?, source)?;
        debug_assert!(
            {
                let need = self.chain.resident_bytes() + Bytes(step.bytes * self.unit);
                let peak = need.max(self.chain.optimizer_peak());
                found.peak == peak || (self.unit > 1 && found.peak < peak)
            },
            "the table and the simulator disagree"
        );
        Ok(found)
    }
}

/// Every stage recorded in its fastest way; of equally fast ways, the one that makes the peak smaller.
fn fastest(chain: &Chain, terms: &Terms) -> Result<Candidate, PlanError> {
    let loss = terms.loss();
    let mut peak = terms.all(loss, loss, &terms.nodes[loss].ways[0]);
    let mut chosen = vec![0; loss];
    for s in (0..loss).rev() {
        let ways = &terms.nodes[s].ways;
        let least = ways
            .iter()
            .map(|way| way.seconds)
            .fold(f64::INFINITY, f64::min);
        let peaks = ways
            .iter()
            .enumerate()
            .filter(|(_, way)| way.seconds == least);
        let best = peaks
            .map(|(number, way)| (terms.all(s, loss, way).max(way.saved + peak), number))
            .min();
        (peak, chosen[s]) = best.unwrap_or((peak, 0));
    }
    let schedule = emit(loss, (), |s, _, ()| Choice::Track {
        alternative: chosen[s],
        rest: (),
    })?;
    Candidate::new(chain, schedule, Source::Fastest)
}
