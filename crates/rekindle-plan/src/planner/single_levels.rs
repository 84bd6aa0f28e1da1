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

use super::cuts::Cuts;
use super::source::PlanSource;
use super::{MOST_STAGES, PlanError, check_length, single_level};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::plan::{Plan, keep_useful};
use crate::request::Planner;

/// Chains of up to this many stages are searched to the byte: about 25 searches for each schedule.
pub(crate) const MOST_STAGES_EXACT: usize = 300;

/// The number of budgets that are tried for longer chains.
const RUNGS: u64 = 500;

/// For every place where the last segment may start: the smallest budget that was tried, and its cut.
type Best = BTreeMap<usize, (u64, Vec<usize>)>;

/// The best single-level schedules for the budgets 0, step, 2 step, ...
pub(crate) struct SingleLevels<'a> {
    chain: &'a Chain,
    cuts: Cuts,
    step: u64,
}

impl<'a> SingleLevels<'a> {
    pub(crate) fn new(chain: &'a Chain) -> Result<SingleLevels<'a>, PlanError> {
        check_length(Planner::Optimal, chain.stages.len(), MOST_STAGES)?;
        let cuts = Cuts::new(chain);
        let exact = cuts.stages() <= MOST_STAGES_EXACT;
        let step = if exact { 1 } else { cuts.whole().0 / RUNGS + 1 };
        Ok(SingleLevels { chain, cuts, step })
    }

    /// The fastest one within a budget, in exact bytes, with the fewest segments among equals.
    pub(crate) fn best(&self, budget: Bytes) -> Result<Option<Plan>, PlanError> {
        let starts = self.cuts.within(budget);
        starts.map(|starts| self.plan(&starts)).transpose()
    }

    /// The smallest budget that one can meet. Cost: about forty times that of [`best`](Self::best).
    pub(crate) fn smallest(&self) -> Bytes {
        // `high` fits: nothing is cut.
        let (mut low, mut high) = (0, self.cuts.whole().0);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.cuts.within(Bytes(middle)) {
                Some(_) => high = middle,
                None => low = middle + 1,
            }
        }
        Bytes(high)
    }

    /// The candidate schedules for a budget, if any: the best for the budget itself or the next smaller one that is
    /// tried, and the best for the next larger one if it fits.
    pub(crate) fn within(&self, budget: Bytes) -> Result<Vec<Plan>, PlanError> {
        let rung = budget.0 / self.step;
        let above = (self.step > 1).then_some(rung + 1);
        let mut found = Vec::new();
        for rung in [Some(rung), above].into_iter().flatten() {
            if let Some(starts) = self.starts(rung) {
                found.push(self.plan(&starts)?);
            }
        }
        found.retain(|plan: &Plan| plan.peak <= budget);
        Ok(found)
    }

    /// All of them, from the smallest peak to the largest.
    pub(crate) fn frontier(&self) -> Result<Vec<Plan>, PlanError> {
        let mut best = BTreeMap::new();
        let top = self.cuts.whole().0.div_ceil(self.step);
        let low = (0, self.visit(0, &mut best));
        let high = (top, self.visit(top, &mut best));
        self.between(low, high, &mut best);
        let plans = best.values().map(|(_, starts)| self.plan(starts));
        let mut plans: Vec<Plan> = plans.collect::<Result<_, _>>()?;
        keep_useful(&mut plans, |plan| (plan.peak, plan.step));
        Ok(plans)
    }

    /// Visits the budgets between two wherever the answer changes; both are given with their answers.
    fn between(&self, low: (u64, Option<usize>), high: (u64, Option<usize>), best: &mut Best) {
        if low.1 == high.1 || high.0 - low.0 <= 1 {
            return;
        }
        let rung = low.0 + (high.0 - low.0) / 2;
        let middle = (rung, self.visit(rung, best));
        self.between(low, middle, best);
        self.between(middle, high, best);
    }

    /// Where the last segment starts, with a budget.
    fn visit(&self, rung: u64, best: &mut Best) -> Option<usize> {
        let starts = self.starts(rung)?;
        let last = starts.last().copied().unwrap_or(0);
        if best.get(&last).is_none_or(|known| rung < known.0) {
            best.insert(last, (rung, starts));
        }
        Some(last)
    }

    fn starts(&self, rung: u64) -> Option<Vec<usize>> {
        let budget = rung.saturating_mul(self.step);
        self.cuts.within(Bytes(budget))
    }

    fn plan(&self, starts: &[usize]) -> Result<Plan, PlanError> {
        let schedule = single_level(self.cuts.stages(), starts)?;
        let source = PlanSource::SingleLevel;
        Ok(Plan::new(self.chain, Planner::Optimal, schedule, source))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::planner::test_chain::chain;
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
            let all = SingleLevels::new(&chain).unwrap();
            let cuts = (0_u32..1 << 7).map(|cuts| {
                let starts: Vec<usize> = (1..8).filter(|i| cuts >> (i - 1) & 1 == 1).collect();
                let run = crate::simulate(&chain, &single_level(8, &starts).unwrap());
                (run.peak, run.time, starts.len() + 1)
            });
            let cuts: Vec<_> = cuts.collect();
            assert_eq!(Some(all.smallest()), cuts.iter().map(|cut| cut.0).min());
            for part in 0..20 {
                let budget = Bytes(all.smallest().0 + part * 5 * unit);
                let fitting = cuts.iter().filter(|(peak, ..)| *peak <= budget);
                let best = fitting.map(|(_, time, segments)| (*time, *segments));
                let best = best.min_by(|a, b| a.partial_cmp(b).unwrap());
                let found = all.best(budget).unwrap().map(|plan| {
                    let segments = plan.schedule.segments().unwrap().len();
                    (plan.step, segments)
                });
                assert_eq!(found, best, "within {budget}");
            }
        }
    }
}
