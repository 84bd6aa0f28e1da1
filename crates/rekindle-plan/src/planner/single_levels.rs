//! All single-level schedules on a chain's memory/time frontier, from which the best for any budget is chosen.
//!
//! There are at most as many as stages, because their time depends only on where the last segment starts. For up to
//! [`MOST_STAGES_EXACT`] stages all are found, each with its smallest budget; for longer chains, the best for each of
//! [`RUNGS`] evenly spaced budgets. Budgets between two with the same result are not searched.

use std::collections::BTreeMap;

use super::cuts::Cuts;
use super::kind::PlannerKind;
use super::length::{MOST_STAGES, check_length};
use super::source::PlanSource;
use super::{PlanError, single_level};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::plan::{Plan, keep_useful};

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
        check_length(PlannerKind::Segments, chain.stages.len(), MOST_STAGES)?;
        let cuts = Cuts::new(chain);
        let exact = cuts.stages() <= MOST_STAGES_EXACT;
        let step = if exact { 1 } else { cuts.whole().0 / RUNGS + 1 };
        Ok(SingleLevels { chain, cuts, step })
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
        self.cuts.within(Bytes(budget), None)
    }

    fn plan(&self, starts: &[usize]) -> Result<Plan, PlanError> {
        let schedule = single_level(self.cuts.stages(), starts)?;
        Plan::new(
            self.chain,
            PlannerKind::Segments,
            schedule,
            PlanSource::Segments,
        )
    }
}
