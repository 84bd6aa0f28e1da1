//! All single-level schedules on a chain's memory/time frontier, from which the best for any budget is chosen.
//!
//! Among all ways to cut a chain into segments of which all but the last are recomputed once, the best takes the least
//! time that fits, then has the fewest segments; `cuts.rs` finds it. The problem goes back to Chen et al. 2016 (arXiv
//! 1604.06174), who solve it with a greedy pass.
//!
//! There are at most as many as stages, because their time depends only on where the last segment starts. For up to
//! [`MOST_STAGES_EXACT`] stages all are found, each with its smallest budget; for longer chains, the best for each of
//! [`RUNGS`] evenly spaced budgets. Budgets between two with the same result are not searched.

use std::collections::BTreeMap;

use super::Recipe;
use super::cuts::Cuts;

/// Chains of up to this many stages are searched to the byte: about 25 searches for each schedule.
const MOST_STAGES_EXACT: usize = 300;

/// The number of budgets that are tried for longer chains.
const RUNGS: u64 = 500;

/// The best cut within so many bytes, everything always held apart, or the one with the smallest peak; without a limit,
/// those for all budgets.
pub(super) fn schedules(cuts: &Cuts<'_>, within: Option<u64>) -> Vec<Recipe> {
    let mut found = match within {
        Some(room) => cuts.within(room).into_iter().collect(),
        None => frontier(cuts),
    };
    if found.is_empty() || within.is_none() {
        found.extend(leanest(cuts));
    }
    found.into_iter().map(Recipe::Cut).collect()
}

/// The cut with the smallest peak. Cost: about forty times that of the best one for a budget.
fn leanest(cuts: &Cuts<'_>) -> Option<Vec<usize>> {
    // `high` fits: nothing is cut.
    let (mut low, mut high) = (0, cuts.whole());
    while low < high {
        let middle = low + (high - low) / 2;
        match cuts.within(middle) {
            Some(_) => high = middle,
            None => low = middle + 1,
        }
    }
    cuts.within(high)
}

/// The best cuts for the budgets 0, step, 2 step, ...
pub(super) fn frontier(cuts: &Cuts<'_>) -> Vec<Vec<usize>> {
    let exact = cuts.stages() <= MOST_STAGES_EXACT;
    let step = if exact { 1 } else { cuts.whole() / RUNGS + 1 };
    let mut rungs = Rungs {
        cuts,
        step,
        best: BTreeMap::new(),
    };
    let top = cuts.whole().div_ceil(step);
    let low = (0, rungs.visit(0));
    let high = (top, rungs.visit(top));
    rungs.between(low, high);
    rungs.best.into_values().map(|(_, starts)| starts).collect()
}

/// The budgets that are tried.
struct Rungs<'a> {
    cuts: &'a Cuts<'a>,
    step: u64,
    /// For every place where the last segment may start: the smallest budget that was tried, in steps, and its cut.
    best: BTreeMap<usize, (u64, Vec<usize>)>,
}

impl Rungs<'_> {
    /// Visits the budgets between two wherever the answer changes; both are given with their answers.
    fn between(&mut self, low: (u64, Option<usize>), high: (u64, Option<usize>)) {
        if low.1 == high.1 || high.0 - low.0 <= 1 {
            return;
        }
        let rung = low.0 + (high.0 - low.0) / 2;
        let middle = (rung, self.visit(rung));
        self.between(low, middle);
        self.between(middle, high);
    }

    /// Where the last segment starts, with a budget.
    fn visit(&mut self, rung: u64) -> Option<usize> {
        let starts = self.cuts.within(rung.saturating_mul(self.step))?;
        let last = starts.last().copied().unwrap_or(0);
        if self.best.get(&last).is_none_or(|known| rung < known.0) {
            self.best.insert(last, (rung, starts));
        }
        Some(last)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::bytes::Bytes;
    use crate::planner::terms::Terms;
    use crate::planner::test_chain::{chain, simulated};
    use crate::seconds::Seconds;

    /// No cut of eight stages takes less time, or the same with fewer segments (all 128 cuts, at 20 budgets).
    #[test]
    fn the_best_cut_is_found() {
        for unit in 1..=20 {
            let mut chain = chain(8, 8, unit);
            chain.input_grad = unit % 2 == 0;
            chain.fixed_bytes = Bytes(unit);
            for stage in &mut chain.stages {
                // Where a stage takes no time, cuts before and after it take the same.
                stage.forward_s += Seconds(1.0);
            }
            let terms = Terms::new(&chain);
            let found = Cuts::new(&terms);
            let priced = |starts: Vec<usize>| {
                let segments = starts.len() + 1;
                let run = simulated(&chain, &Recipe::Cut(starts).schedule(8));
                (run.peak - chain.resident_bytes(), run.time, segments)
            };
            let cuts = (0_u32..1 << 7)
                .map(|cuts| priced((1..8).filter(|i| cuts >> (i - 1) & 1 == 1).collect()));
            let cuts: Vec<_> = cuts.collect();
            let smallest = cuts.iter().map(|cut| cut.0).min().unwrap();
            assert_eq!(priced(leanest(&found).unwrap()).0, smallest);
            for part in 0..20 {
                let room = smallest + Bytes(part * 5 * unit);
                let fitting = cuts.iter().filter(|(peak, ..)| *peak <= room);
                let best = fitting.map(|(_, time, segments)| (*time, *segments));
                let best = best.min_by(|a, b| a.partial_cmp(b).unwrap());
                let found = found.within(room.0).map(priced);
                let found = found.map(|(_, time, segments)| (time, segments));
                assert_eq!(found, best, "within {room}");
            }
        }
    }
}
