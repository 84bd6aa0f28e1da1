//! What a run leaves of its steps.

use std::{fs, path::Path};

/// The loss of every step of the run in a folder, as it was written.
pub fn losses(run: &Path) -> Vec<String> {
    let history = fs::read_to_string(run.join("history.csv")).expect("a history");
    let losses = history.lines().skip(1).map(|line| {
        let loss = line.split(',').nth(1).expect("a loss");
        loss.to_owned()
    });
    losses.collect()
}
