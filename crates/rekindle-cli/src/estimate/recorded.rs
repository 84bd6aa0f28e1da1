//! The step as `train` records it, by shapes: what it needs, and what smaller budgets cost.

use rekindle::record;
use rekindle_plan::Bytes;
use rekindle_train as train;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{config::Config, failure::Failure, terminal};

/// Budgets that are planned for where none was asked for, in parts of the plain step's peak.
const SHARES: [f64; 2] = [0.75, 0.5];
/// Planning for more operations would take minutes.
pub(super) const MOST_OPERATIONS: usize = 60_000;

/// The recorded step. Parameters, batch and optimizer's state are counted; kernels' temporary bytes, and what the
/// process holds besides, are not.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RecordedStep {
    /// Number of operations.
    operations: usize,
    /// Parameters, batch, optimizer's state and live tensors at the plain step's peak; no temporary bytes of kernels.
    plain_peak_bytes: Bytes,
    /// The operation at which the plain step peaks.
    peak_operation: String,
    /// Whether that operation is in the backward pass.
    peak_in_backward: bool,
    /// The smallest budget that a plan was found for.
    smallest_peak_bytes: Bytes,
    /// The cost of some smaller budgets.
    budgets: Vec<BudgetCost>,
}

/// What a budget costs.
#[derive(Debug, Serialize, JsonSchema)]
struct BudgetCost {
    /// The budget.
    budget_bytes: Bytes,
    /// Operations on numbers, in those of the plain step.
    work_ratio: f64,
}

impl RecordedStep {
    /// Records the step of a config on no device, and plans it for the budget that was `asked` for, or for some.
    /// Nothing where it has too many operations to plan in seconds.
    pub fn new(config: &Config, asked: Option<Bytes>) -> Result<Option<Self>, Failure> {
        let settings = &config.training;
        let target = config.data.source.target();
        let estimate = train::estimate(&config.model, settings, target, 1)?;
        if estimate.operations > MOST_OPERATIONS {
            return Ok(None);
        }
        let state = settings.state_bytes(config.shape.param_count());
        let plain = estimate.plain_peak + state;
        let mut budgets = Vec::new();
        let share = |share| Bytes((plain.0 as f64 * share) as u64);
        let wanted = match asked {
            Some(budget) => vec![budget],
            None => SHARES.map(share).to_vec(),
        };
        for budget in wanted {
            let within = Bytes(budget.0.saturating_sub(state.0));
            if let Some((_, work_ratio)) = estimate.within(within)? {
                budgets.push(BudgetCost {
                    budget_bytes: budget,
                    work_ratio,
                });
            }
        }
        let record::Estimate {
            operations,
            peak_at: (peak_operation, peak_in_backward),
            smallest_peak,
            ..
        } = estimate;
        Ok(Some(Self {
            operations,
            plain_peak_bytes: plain,
            peak_operation,
            peak_in_backward,
            smallest_peak_bytes: smallest_peak + state,
            budgets,
        }))
    }

    /// For people.
    pub fn text(&self) -> String {
        let part = match self.peak_in_backward {
            true => "backward",
            false => "forward",
        };
        let budgets = self.budgets.iter().map(|one| {
            let BudgetCost {
                budget_bytes,
                work_ratio,
            } = one;
            format!("within {budget_bytes} it does {work_ratio:.2}x the work, ")
        });
        let text = format!(
            "Recorded, as `train` runs it: {} operations. By shapes the plain step peaks at {} in the {part} pass; {}the \
             smallest workable budget is {}. Temporary buffers of kernels and the process's own memory are not included.",
            self.operations,
            self.plain_peak_bytes,
            budgets.collect::<String>(),
            self.smallest_peak_bytes,
        );
        terminal::wrapped(&text, "")
    }
}
