//! The frontier: which budgets buy which times.

use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::plan::{Plan, PlannerKind, Source, candidates, finish};
use crate::planner::optimal::{Candidate, Optimal, staircase};
use crate::planner::segments::SegmentPeaks;
use crate::planner::terms::Terms;
use crate::planner::{PlanError, single_level};

/// Two neighbouring budgets of `segments` are at least this factor apart.
const SEGMENTS_STEP: f64 = 0.99;

/// The useful plans of a planner, from the smallest peak to the largest: each larger one is strictly faster. With a plan's
/// peak as the budget, [`plan`](crate::plan()) returns that plan or one that is as fast.
///
/// `none`, `uniform`, `sqrt` and `revolve` list all that they have. `optimal` and `auto` read the whole staircase off the
/// tables that one plan would use, so this costs little more than a plan. `segments` tries budgets that are 1% apart,
/// each plan exact.
///
/// # Errors
/// As [`plan`](crate::plan()); a budget is not among them.
pub fn frontier(chain: &Chain, kind: PlannerKind, slots: usize) -> Result<Vec<Plan>, PlanError> {
    chain.validate()?;
    if slots == 0 || slots > crate::PlanRequest::MOST_SLOTS {
        return Err(PlanError::SlotCount { slots });
    }
    let found: Vec<Candidate> = match kind {
        PlannerKind::None | PlannerKind::Uniform | PlannerKind::Sqrt | PlannerKind::Revolve => {
            candidates(chain, kind, None)?
        }
        PlannerKind::Segments => single_levels(chain)?,
        PlannerKind::Optimal | PlannerKind::Auto => {
            let terms = Terms::new(chain);
            let optimal = Optimal::new(chain, &terms, slots)?;
            let mut found = single_levels(chain)?;
            found.extend(staircase(&optimal)?);
            found.extend([optimal.smallest, optimal.fastest]);
            found
        }
    };
    let planner = if kind == PlannerKind::Auto {
        PlannerKind::Optimal
    } else {
        kind
    };
    Ok(useful(found)
        .into_iter()
        .map(|found| finish(planner, found))
        .collect())
}

/// `segments` for budgets from plenty down to too little.
fn single_levels(chain: &Chain) -> Result<Vec<Candidate>, PlanError> {
    let peaks = SegmentPeaks::new(chain);
    let mut found: Vec<Candidate> = Vec::new();
    let mut budget = Bytes::MAX;
    while let Some(starts) = peaks.within(budget, None) {
        let schedule = single_level(chain.stages.len(), &starts)?;
        let candidate = Candidate::new(chain, schedule, Source::Segments)?;
        let Some(below) = candidate.peak.checked_sub(Bytes(1)) else {
            break;
        };
        budget = below.min(Bytes((budget.0 as f64 * SEGMENTS_STEP) as u64));
        found.push(candidate);
    }
    Ok(found)
}

/// Drops every plan that another one equals or beats in both peak and time.
fn useful(mut found: Vec<Candidate>) -> Vec<Candidate> {
    found.sort_by(|a, b| a.peak.cmp(&b.peak).then(a.time.total_cmp(&b.time)));
    let mut kept: Vec<Candidate> = Vec::new();
    for point in found {
        if kept.last().is_none_or(|last| point.time < last.time) {
            kept.push(point);
        }
    }
    kept
}
