//! A lower bound of the time under a budget, from what the budget can keep.
//!
//! When the loss runs, the recorded graphs that are held have a sum of X at most the memory above what is always
//! resident. Every other stage has run forward once by then, to reach the loss, and must run again to be recorded. So
//! ```text
//! time >= sum of forward + backward of every stage
//!         + least sum of forward_i over the stages left out of a set with sum X <= memory
//! ```
//! and the last sum is at least that of the fractional knapsack, which leaves out the stages of least forward_i / X_i.
//! Holds for every schedule, persistent or not.

use rekindle_plan::{Bytes, Chain, Seconds};

/// No schedule within `budget` (everything counted) takes less than this; there may be none at all.
pub fn least_time(chain: &Chain, budget: Bytes) -> Seconds {
    let loss = &chain.loss;
    let mut time = chain.optimizer.step_s.0 + loss.forward_s.0 + loss.backward_s.0;
    let mut kept = 0;
    // X and forward of each stage.
    let mut stages = Vec::with_capacity(chain.stages.len());
    for stage in &chain.stages {
        time += stage.forward_s.0 + stage.backward_s.0;
        let saved = stage.saved_bytes.0;
        if saved > 0 {
            stages.push((saved, stage.forward_s.0));
            kept += saved;
        }
    }
    let mut over = kept.saturating_sub((budget - chain.resident_bytes()).0);
    // Those that save least time per byte first.
    stages.sort_by(|a, b| (a.1 / a.0 as f64).total_cmp(&(b.1 / b.0 as f64)));
    for (saved, forward) in stages {
        let dropped = over.min(saved);
        time += forward * (dropped as f64 / saved as f64);
        over -= dropped;
    }
    Seconds(time)
}
