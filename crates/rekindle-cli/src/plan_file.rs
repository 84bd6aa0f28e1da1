//! Plans as files: how they are read.

use std::path::Path;

use rekindle_train::session::{PLAN_FORMAT, PlanFile};

use crate::{failure::Failure, input};

/// Reads a plan that can run.
pub fn read(path: &Path) -> Result<PlanFile, Failure> {
    let file: PlanFile = input::document(path, PLAN_FORMAT)?;
    match file.order() {
        Ok(_) => Ok(file),
        Err(error) => Err(Failure::usage(format!("{}: {error}", path.display()))
            .help("make one for this config: `rekindle plan CONFIG --budget SIZE -o plan.json`")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{exit, mutated};

    const PLAN: &str = r#"{"format": "rekindle-plan/2", "feasible": true, "planner": "segments", "budget_bytes": null,
        "predicted_peak_bytes": 40, "predicted_in_use_bytes": 40, "predicted_step_s": 0.5,
        "plain_peak_bytes": 50, "plain_step_s": 0.4, "segments": [[0, 0], [1, 1]], "update": "after",
        "in_backward_because": null, "operations": 3, "recomputed": 1,
        "stages": [{"name": "a", "forward_s": 1, "backward_s": 1, "output_bytes": 5, "saved_bytes": 5,
                    "forward_temp_bytes": 0, "backward_temp_bytes": 0}],
        "schedule": ["forward 0", "forward 1", "loss", "backward 1", "forward 0", "backward 0", "optimize"],
        "order": {"recording": "00ff", "operations": [0, 1, 2]}}"#;

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig {
            failure_persistence: None,
            ..proptest::prelude::ProptestConfig::with_cases(400)
        })]

        #[test]
        fn damaged_plans_are_read_or_refused(edits in mutated::edits()) {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("plan.json");
            fs::write(&path, PLAN).expect("written");
            assert!(read(&path).is_ok());
            fs::write(&path, mutated::edited(PLAN.as_bytes(), &edits)).expect("written");
            if let Err(failure) = read(&path) {
                assert_eq!(failure.code, exit::USAGE);
            }
        }
    }
}
