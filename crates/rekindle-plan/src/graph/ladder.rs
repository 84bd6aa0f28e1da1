//! Searches at a budget and at a few smaller ones, so that a larger budget rarely gives a slower program.
//!
//! A search is partly random: with a little more room it may end in a slower program. So the search at the budget
//! starts from the programs of shorter searches at [`RUNGS`] smaller budgets, rungs of a ladder that is the same for
//! all requests, and its program is never slower than any of theirs. If one of these finds nothing, the program with
//! the smallest peak is used instead. Between two rungs the time may still rise with the budget: by at most 1.6% in
//! measurements, at 8 of 205 budgets of five graphs.

use super::Graph;
use super::found::{Found, keep_better};
use super::index::Index;
use super::search::{Effort, Search};
use super::smallest::smallest;
use super::staged::{AllStaged, Staged};
use crate::bytes::Bytes;
use crate::seconds::Seconds;

/// Ratio of neighbouring rungs.
const STEP: f64 = 1.06;
/// Number of rungs below the budget that are searched.
const RUNGS: usize = 3;
/// The search at a rung has the whole effort divided by this.
const PARTS: usize = 4;
/// The peaks of the programs over stages that a search starts from, as multiples of the budget.
const LARGER: [f64; 6] = [1.0, 1.05, 1.15, 1.3, 1.6, 2.2];

/// The time of every operation when times do not matter.
const EVEN: Seconds = Seconds(1e-6);

/// The starting point of all searches on a graph.
pub(crate) struct Ladder<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) index: &'a Index,
    pub(crate) recorded: &'a Found,
    /// Programs over stages.
    pub(crate) staged: &'a AllStaged<'a>,
    /// Maximum bytes of host copies.
    pub(crate) host_room: Bytes,
}

impl Ladder<'_> {
    /// The best program found within a budget, or the one found with the smallest peak.
    pub(crate) fn within(&self, budget: Bytes) -> Result<Found, Box<Found>> {
        let rung = (budget.0.max(1) as f64).log(STEP).floor();
        let mut lower = None;
        let mut all_fit = true;
        for below in (0..RUNGS).rev() {
            let budget = Bytes(STEP.powf(rung - below as f64) as u64);
            match self.search(budget, Effort::WHOLE.part(PARTS), None) {
                Some(found) => keep_better(&mut lower, found),
                None => all_fit = false,
            }
        }
        if !all_fit {
            let smallest = self.smallest();
            if smallest.peak() > budget {
                return Err(Box::new(smallest));
            }
            keep_better(&mut lower, smallest);
        }
        let found = self.search(budget, Effort::WHOLE, lower.as_ref());
        found.ok_or_else(|| Box::new(self.recorded.clone()))
    }

    /// The program found with the smallest peak. It does not depend on times, so different measurements of one step
    /// give the same program.
    pub(crate) fn smallest(&self) -> Found {
        let mut even = self.graph.clone();
        for operation in &mut even.operations {
            operation.seconds = EVEN;
        }
        let leanest = self.staged.leanest();
        let leanest = leanest.and_then(|staged| self.staged.program(staged).ok());
        let outlines = [self.recorded].into_iter().chain(&leanest);
        let outlines: Vec<Found> = outlines
            .map(|found| Found::of(&even, &found.program))
            .collect();
        let outlines: Vec<&Found> = outlines.iter().collect();
        match smallest(&even, self.index, self.host_room, &outlines) {
            Some(found) => Found::of(self.graph, &found.program),
            None => self.recorded.clone(),
        }
    }

    fn search(&self, budget: Bytes, effort: Effort, from: Option<&Found>) -> Option<Found> {
        // Faster programs over stages that do not fit: walks make them fit by evicting single tensors.
        let larger = LARGER.iter().filter_map(|factor| {
            let larger = Bytes((budget.0 as f64 * factor) as u64);
            self.staged.fastest_within(larger)
        });
        let mut staged: Vec<&Staged> = larger.collect();
        staged.dedup_by_key(|staged| -> *const Staged { *staged });
        let staged = staged.into_iter();
        let staged: Vec<Found> = staged
            .filter_map(|staged| self.staged.program(staged).ok())
            .collect();
        let outlines = [self.recorded].into_iter().chain(from).chain(&staged);
        let outlines: Vec<&Found> = outlines.collect();
        Search::new(self.graph, self.index, effort, self.host_room).within(budget, &outlines)
    }
}
