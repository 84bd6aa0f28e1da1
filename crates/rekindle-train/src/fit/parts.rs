//! In how many parts a batch runs fastest within a budget.
//!
//! Recomputing cannot go below the largest operation with its inputs; a part of a batch makes that operation smaller. Each
//! part reads all weights again, and so takes more than its share of the step's time. Candidates are powers of two, up to the
//! next divisor of the batch, until the plain step of one fits: more parts are slower from there on.

use rekindle::record::Update;
use rekindle_plan::{Bytes, Planner, Request};

use super::ScheduleKind;
use crate::{
    session::{MeasuredStep, RunError},
    settings::{Accumulate, TrainSettings, UpdateChoice},
    update::updates,
};

/// Smallest peaks that differ by less are equal: more parts would only be slower.
const EQUAL: f64 = 0.01;

/// The number of parts with the least predicted step time within a budget, each with its fastest plan over stages. Where none
/// fits, the fewest whose smallest peak is the least of all; 1 where parameters are updated in the backward pass. `step` gives
/// the step of some settings by shapes.
///
/// # Errors
///
/// Those of `step`, and of plans that make no sense.
pub fn parts<E: From<RunError>>(
    settings: &TrainSettings,
    budget: Bytes,
    step: impl Fn(&TrainSettings) -> Result<MeasuredStep, E>,
) -> Result<usize, E> {
    if settings.update == UpdateChoice::InBackward {
        return Ok(1);
    }
    let step = |parts, update: Update| {
        step(&TrainSettings {
            accumulate: Accumulate::Parts(parts),
            update: update.into(),
            ..settings.clone()
        })
    };
    let candidates = candidates(settings.batch);
    let mut fastest = None;
    for &parts in &candidates {
        let own = TrainSettings {
            accumulate: Accumulate::Parts(parts),
            ..settings.clone()
        };
        let step = |update| step(parts, update);
        let plan = ScheduleKind::Plan.fits(updates(&own, true), step, budget, f64::INFINITY)?;
        let Some(plan) = plan else {
            continue;
        };
        let seconds = plan.summary.predicted_time;
        if fastest.is_none_or(|(least, _)| seconds < least) {
            fastest = Some((seconds, parts));
        }
        if plan.summary.repeated == 0 {
            break;
        }
    }
    if let Some((_, parts)) = fastest {
        return Ok(parts);
    }
    let mut smallest = Vec::new();
    for parts in candidates {
        let request = Request::of(Planner::Segments(None), Some(Bytes::ZERO));
        match step(parts, Update::After)?.plan(&request) {
            Err(RunError::Infeasible(refused)) => smallest.push((refused.smallest, parts)),
            other => drop(other?),
        }
    }
    let least = smallest.iter().map(|(bytes, _)| bytes.0).min();
    let most = least.unwrap_or_default() as f64 * (1.0 + EQUAL);
    let fewest = smallest.iter().find(|(bytes, _)| bytes.0 as f64 <= most);
    Ok(fewest.map_or(1, |(_, parts)| *parts))
}

/// For each power of two up to a batch, the next number that divides it.
fn candidates(batch: usize) -> Vec<usize> {
    let powers = (0..usize::BITS).map(|power| 1_usize << power);
    let divisor = |power: usize| (power..=batch).find(|parts| batch.is_multiple_of(*parts));
    let mut all: Vec<usize> = powers.map_while(divisor).collect();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use rekindle_plan::{Chain, LossCost, OptimizerCost, Seconds, Stage};

    use super::*;

    /// Six stages that keep 64 bytes for each part of 16 samples, and read 10 bytes of weights in each.
    fn step(settings: &TrainSettings) -> Result<MeasuredStep, RunError> {
        let parts = settings.parts() as u64;
        let bytes = Bytes(1024 / parts);
        let seconds = Seconds((1024 + 10 * parts) as f64);
        let stage = Stage {
            forward_s: seconds,
            backward_s: seconds * 2.0,
            output_bytes: bytes,
            saved_bytes: bytes,
            ..Stage::default()
        };
        Ok(MeasuredStep::of_chain(Chain {
            input_bytes: bytes,
            input_grad: false,
            fixed_bytes: Bytes(100),
            stages: vec![stage; 6],
            loss: LossCost::default(),
            optimizer: OptimizerCost::default(),
        }))
    }

    #[test]
    fn the_fastest_number_is_found() {
        let settings = TrainSettings {
            batch: 16,
            accumulate: Accumulate::Auto,
            ..TrainSettings::default()
        };
        let mut found = Vec::new();
        for budget in (100..12_000).step_by(100).map(Bytes) {
            let time = |parts: usize| {
                let own = TrainSettings {
                    accumulate: Accumulate::Parts(parts),
                    ..settings.clone()
                };
                let ways = updates(&own, true);
                let plan = ScheduleKind::Plan.fits(ways, |_| step(&own), budget, f64::INFINITY);
                let plan = plan.expect("planned");
                plan.map_or(f64::INFINITY, |plan| plan.summary.predicted_time.0)
            };
            // The first of equals.
            let all = [1, 2, 4, 8, 16];
            let least = all.map(time).into_iter().fold(f64::INFINITY, f64::min);
            let best = all.into_iter().find(|&parts| time(parts) == least);
            let parts = parts(&settings, budget, step).expect("planned");
            if least.is_finite() {
                assert_eq!(Some(parts), best, "{budget}");
            }
            found.push(parts);
        }
        found.dedup();
        assert_eq!((found.first(), found.last()), (Some(&16), Some(&1)));
        assert!(found.len() > 3, "{found:?}");
    }

    #[test]
    fn candidates_divide_the_batch() {
        assert_eq!(candidates(1), [1]);
        assert_eq!(candidates(8), [1, 2, 4, 8]);
        assert_eq!(candidates(12), [1, 2, 4, 12]);
        assert_eq!(candidates(30), [1, 2, 5, 10, 30]);
        assert_eq!(candidates(7), [1, 7]);
    }
}
