//! Input files named by the user: texts, and JSON documents with a format tag, such as plans.

use std::{fs, io, path::Path};

use rekindle_train::{
    replace::read_regular,
    session::{PLAN_FORMAT, PlanFile},
};
use serde::{Deserialize, de::DeserializeOwned};

use crate::failure::Failure;

/// The whole text of a file that the user named.
pub fn text(path: &Path) -> Result<String, Failure> {
    decoded(path, fs::read(path))
}

/// The whole text of a file in the folder of a run or a sweep, which may be somebody else's.
pub fn kept(path: &Path) -> Result<String, Failure> {
    decoded(path, read_regular(path))
}

/// Invalid UTF-8 counts as bad usage, not as an error of the system.
fn decoded(path: &Path, read: io::Result<Vec<u8>>) -> Result<String, Failure> {
    let bytes = read.map_err(|error| Failure::file(path, &error))?;
    String::from_utf8(bytes).map_err(|error| {
        Failure::usage(format!(
            "{} is not UTF-8 text (byte {})",
            path.display(),
            error.utf8_error().valid_up_to()
        ))
    })
}

/// A document of this program, from the text of a file, which must be of this format.
pub fn document<T: DeserializeOwned>(path: &Path, text: &str, format: &str) -> Result<T, Failure> {
    #[derive(Deserialize)]
    struct Tag {
        format: String,
    }
    let wrong = |error: serde_json::Error| Failure::usage(format!("{}: {error}", path.display()));
    let found: Tag = serde_json::from_str(text).map_err(|error| {
        Failure::usage(format!("{}: no `{format}` file: {error}", path.display()))
            .help("such files are written by rekindle itself (`-o`), as JSON")
    })?;
    match found.format == format {
        true => serde_json::from_str(text).map_err(wrong),
        false => Err(Failure::usage(format!(
            "{} is a `{}` file; expected `{format}`",
            path.display(),
            found.format
        ))),
    }
}

/// Reads a plan that can run.
pub fn plan(path: &Path) -> Result<PlanFile, Failure> {
    let file: PlanFile = document(path, &text(path)?, PLAN_FORMAT)?;
    match file.order() {
        Ok(_) => Ok(file),
        Err(error) => Err(Failure::usage(format!("{}: {error}", path.display()))
            .help("make one for this config: `rekindle plan CONFIG --budget SIZE -o plan.json`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{exit, mutated};

    const PLAN: &str = r#"{"format": "rekindle-plan/3", "feasible": true, "accumulate": 1, "planner": "segments", "budget_bytes": null,
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
            assert!(plan(&path).is_ok());
            fs::write(&path, mutated::edited(PLAN.as_bytes(), &edits)).expect("written");
            if let Err(failure) = plan(&path) {
                assert_eq!(failure.code, exit::USAGE);
            }
        }
    }
}
