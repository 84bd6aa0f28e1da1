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

/// A point of a planner's frontier.
#[derive(Clone, Debug, PartialEq)]
pub struct FrontierPoint {
    /// A budget at which the planner answers with this plan, or one as fast. At least the plan's peak.
    pub budget: Bytes,
    /// The plan.
    pub plan: Plan,
}

/// The useful points of a planner, from the smallest budget to the largest: each larger budget is strictly faster.
///
/// `none`, `uniform`, `sqrt` and `revolve` list all that they have. `optimal` and `auto` read the whole staircase off the
/// tables that one plan would use, so this costs little more than a plan. `segments` tries budgets that are 1% apart,
/// each plan exact.
///
/// # Errors
/// As [`plan`](crate::plan()); a budget is not among them.
pub fn frontier(
    chain: &Chain,
    kind: PlannerKind,
    slots: usize,
) -> Result<Vec<FrontierPoint>, PlanError> {
    chain.validate()?;
    if slots == 0 || slots > crate::PlanRequest::MOST_SLOTS {
        return Err(PlanError::SlotCount { slots });
    }
    let found: Vec<(Bytes, Candidate)> = match kind {
        PlannerKind::None | PlannerKind::Uniform | PlannerKind::Sqrt | PlannerKind::Revolve => {
            candidates(chain, kind, None)?
                .into_iter()
                .map(|found| (found.peak, found))
                .collect()
        }
        PlannerKind::Segments => single_levels(chain)?,
        PlannerKind::Optimal | PlannerKind::Auto => {
            let terms = Terms::new(chain);
            let optimal = Optimal::new(chain, &terms, slots)?;
            let mut found = single_levels(chain)?;
            for (memory, candidate) in staircase(&optimal)? {
                found.push((
                    (chain.resident_bytes() + Bytes(memory)).max(candidate.peak),
                    candidate,
                ));
            }
            found.push((optimal.smallest.peak, optimal.smallest));
            found.push((optimal.fastest.peak, optimal.fastest));
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
        .map(|(budget, found)| FrontierPoint {
            budget,
            plan: finish(planner, found),
        })
        .collect())
}

/// `segments` for budgets from plenty down to too little.
fn single_levels(chain: &Chain) -> Result<Vec<(Bytes, Candidate)>, PlanError> {
    let peaks = SegmentPeaks::new(chain);
    let mut found = Vec::new();
    let mut budget = Bytes::MAX;
    while let Some(starts) = peaks.within(budget, None) {
        let schedule = single_level(chain.stages.len(), &starts)?;
        let candidate = Candidate::new(chain, schedule, Source::Segments)?;
        let Some(below) = candidate.peak.checked_sub(Bytes(1)) else {
            break;
        };
        budget = below.min(Bytes((budget.0 as f64 * SEGMENTS_STEP) as u64));
        found.push((candidate.peak, candidate));
    }
    Ok(found)
}

/// Drops every point that another one equals or beats in both.
fn useful(mut found: Vec<(Bytes, Candidate)>) -> Vec<(Bytes, Candidate)> {
    found.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.time.total_cmp(&b.1.time)));
    let mut kept: Vec<(Bytes, Candidate)> = Vec::new();
    for point in found {
        if kept.last().is_none_or(|last| point.1.time < last.1.time) {
            kept.push(point);
        }
    }
    kept
}
