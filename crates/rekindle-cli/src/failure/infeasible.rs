//! A budget that no plan fits, and the smallest that one does.

use rekindle_plan::Bytes;
use rekindle_train::session::Infeasible;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Format tag of [`InfeasibleDocument`].
pub const INFEASIBLE_FORMAT: &str = "rekindle-infeasible/2";

/// In place of a plan's or a run's document; the command exits with [`NO_PLAN`](crate::exit::NO_PLAN).
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Infeasible")]
pub struct InfeasibleDocument {
    /// [`INFEASIBLE_FORMAT`].
    format: String,
    /// Always `false`.
    feasible: bool,
    #[serde(flatten)]
    pub infeasible: Infeasible,
}

impl From<&Infeasible> for InfeasibleDocument {
    fn from(infeasible: &Infeasible) -> Self {
        Self {
            format: INFEASIBLE_FORMAT.into(),
            feasible: false,
            infeasible: infeasible.clone(),
        }
    }
}

/// Share that is added to a smallest budget in advice: the other memory of a process, and measurements, vary a little
/// from process to process.
const LEEWAY: f64 = 0.005;

/// The smallest budget as it may be typed: a little more, rounded up to a tenth of its unit.
pub fn advised(smallest: Bytes) -> String {
    let bytes = smallest.0 as f64 * (1.0 + LEEWAY);
    let (unit, size) = [("KiB", 10), ("MiB", 20), ("GiB", 30)]
        .map(|(unit, bits)| (unit, f64::from(1 << bits)))
        .into_iter()
        .rfind(|(_, size)| bytes >= *size)
        .unwrap_or(("KiB", 1024.0));
    format!("{:.1}{unit}", (bytes / size * 10.0).ceil() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rekindle::size::Size;

    #[test]
    fn advised_budgets_can_be_typed_and_are_no_smaller() {
        for bytes in [1, 1000, 1024, 26_933_165, 1 << 30, (1 << 30) - 1, 13 << 40] {
            let typed = advised(Bytes(bytes));
            let Ok(Size::Bytes(read)) = typed.parse() else {
                panic!("{typed}");
            };
            assert!(read.0 >= bytes, "{typed} for {bytes}");
            let most = (bytes as f64 * 1.2).max(1024.0);
            assert!(read.0 as f64 <= most, "{typed} for {bytes}");
        }
        assert_eq!(advised(Bytes(26_933_165)), "25.9MiB");
    }
}
