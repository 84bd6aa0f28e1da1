//! Plans of chains with their optimizer, as callers make them, each confirmed by the [`referee`].

use rekindle_plan::{
    Bytes, Chain, GraphPlan, PlanError, Planner, Request, Seconds, chain_frontier, plan_chain,
    schedule::{Schedule, written},
};

use crate::referee::referee;

/// A plan with the optimizer's part.
#[derive(Debug)]
pub struct Plan {
    pub planner: Planner,
    pub schedule: Schedule,
    pub peak: Bytes,
    pub step: Seconds,
}

impl Plan {
    /// The referee says the same of its written actions. Up to 1,000 stages, because it is slow.
    fn new(chain: &Chain, plan: GraphPlan) -> Plan {
        let schedule = plan.schedule.unwrap();
        let (peak, step) = with_optimizer(chain, plan.simulated.peak, plan.simulated.time);
        if chain.stages.len() <= 1_000 {
            let said = |chain: &Chain| {
                let (peaks, time) = referee(chain, &written(&schedule.actions()));
                (peaks.into_iter().max().unwrap(), Seconds(time))
            };
            assert_eq!(said(&output_first(chain)), (peak, step));
            assert!(said(chain).0 <= peak);
        }
        Plan {
            planner: plan.planner,
            schedule,
            peak,
            step,
        }
    }
}

fn with_optimizer(chain: &Chain, peak: Bytes, time: Seconds) -> (Bytes, Seconds) {
    (
        peak.max(chain.optimizer_peak()),
        time + chain.optimizer.step_s,
    )
}

/// Why there is no plan.
#[derive(Debug)]
pub enum Refused {
    Infeasible {
        smallest: Bytes,
        smallest_of_all: Bytes,
    },
    Other(PlanError),
}

/// The plan of a request, or the smallest budgets.
pub fn plan(chain: &Chain, request: &Request) -> Result<Plan, Refused> {
    let budget = request.budget.unwrap_or(Bytes::MAX);
    let plan = match plan_chain(chain, request) {
        Ok(plan) => Plan::new(chain, plan),
        Err(PlanError::Infeasible { leanest, .. }) => Plan::new(chain, *leanest),
        Err(error) => return Err(Refused::Other(error)),
    };
    if plan.peak <= budget {
        return Ok(plan);
    }
    let any = Request::within(Bytes::ZERO);
    let smallest_of_all = match request.planner {
        Planner::Auto => plan.peak,
        _ => match self::plan(chain, &any) {
            Ok(plan) => plan.peak,
            Err(Refused::Infeasible { smallest, .. }) => smallest,
            // Too long for other planners.
            Err(_) => plan.peak,
        },
    };
    Err(Refused::Infeasible {
        smallest: plan.peak,
        smallest_of_all,
    })
}

/// The plans of all budgets, from the smallest peak to the largest.
pub fn frontier(chain: &Chain, planner: Planner) -> Result<Vec<Plan>, PlanError> {
    let mut plans = chain_frontier(chain, planner, |plan| Plan::new(chain, plan))?;
    // The optimizer may be the peak of several, the last of which is the fastest.
    let peaks: Vec<Bytes> = plans.iter().map(|plan| plan.peak).collect();
    let mut places = 1..=peaks.len();
    plans.retain(|plan| {
        places
            .next()
            .is_none_or(|next| peaks.get(next) != Some(&plan.peak))
    });
    Ok(plans)
}

/// The smallest budget that any schedule can meet.
pub fn smallest_peak(chain: &Chain) -> Bytes {
    match plan(chain, &Request::within(Bytes::ZERO)) {
        Ok(plan) => plan.peak,
        Err(Refused::Infeasible { smallest, .. }) => smallest,
        Err(error) => panic!("{error:?}"),
    }
}

/// The peak without recomputing.
pub fn plain_peak(chain: &Chain) -> Bytes {
    let plain = Request::of(Planner::None, None);
    plan(chain, &plain).unwrap().peak
}

/// The chain with no tracked forward that takes less than the untracked one, which makes its output first too.
pub fn output_first(chain: &Chain) -> Chain {
    let mut chain = chain.clone();
    for stage in &mut chain.stages {
        let output_first = stage.output_bytes + stage.forward_temp_bytes - stage.saved_bytes;
        stage.tracked_temp_bytes = stage.tracked_temp_bytes.max(output_first);
    }
    chain
}
