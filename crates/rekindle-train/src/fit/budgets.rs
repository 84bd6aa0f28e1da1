//! The time costs of smaller budgets.

use std::fmt;

use rekindle::record;
use rekindle_plan::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

use crate::session::RunError;

/// Default budgets, as shares of the plain step's peak.
const SHARES: [f64; 2] = [0.75, 0.5];
/// Planning for more operations would take minutes.
const MOST_OPERATIONS: usize = 60_000;

/// What smaller budgets cost.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Budgets {
    /// The smallest budget that a plan was found for.
    smallest_bytes: Bytes,
    /// Some budgets, if none was asked for.
    some: Vec<BudgetCost>,
}

/// What a budget costs.
#[derive(Debug, Serialize, JsonSchema)]
struct BudgetCost {
    /// The budget.
    budget_bytes: Bytes,
    /// Operations on numbers, in those of the plain step.
    work_ratio: f64,
}

impl Budgets {
    /// Plans a step. Nothing where it has too many operations to plan in seconds.
    ///
    /// # Errors
    ///
    /// If the step cannot be planned.
    pub fn new(
        estimate: &record::Estimate,
        asked: Option<Bytes>,
    ) -> Result<Option<Self>, RunError> {
        if estimate.operations > MOST_OPERATIONS {
            return Ok(None);
        }
        let smallest = estimate.smallest_peak()?;
        let mut some = Vec::new();
        let shares: &[f64] = if asked.is_some() { &[] } else { &SHARES };
        for share in shares {
            let budget = Bytes((estimate.plain_peak.0 as f64 * share) as u64);
            if let Some((_, work_ratio)) = estimate.within(budget)? {
                some.push(BudgetCost {
                    budget_bytes: budget,
                    work_ratio,
                });
            }
        }
        Ok(Some(Self {
            smallest_bytes: smallest,
            some,
        }))
    }
}

/// In whole sentences.
impl fmt::Display for Budgets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for one in &self.some {
            let BudgetCost {
                budget_bytes,
                work_ratio,
            } = one;
            write!(
                f,
                "Within {budget_bytes}, a step takes {work_ratio:.2}x the operations of the plain step. "
            )?;
        }
        write!(
            f,
            "The smallest workable budget is {}.",
            self.smallest_bytes
        )
    }
}
