//! What one size of a model needs at least: as it stands, in equal segments, under a plan.

use rekindle::profile::{Measured, with_reserve};
use rekindle_plan::{
    Bytes, Chain, Plan, PlanError, PlanRequest, PlannerKind, Schedule, Seconds, Source, planner,
    smallest_peak,
};
use serde::{Deserialize, Serialize};

/// Stages beyond which the smallest peak of all schedules is not looked for: its table grows with their square. Equal
/// segments are all that such chains are offered here.
const MOST_STAGES: usize = 1_500;

/// Segment counts that are tried.
const SEGMENT_COUNTS: usize = 24;

/// How a model is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Nothing recomputed.
    Plain,
    /// Segments of equal length.
    Segments,
    /// The best plan.
    Plan,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Segments, Self::Plan];

    /// The planner that finds its schedule.
    pub fn planner(self) -> PlannerKind {
        match self {
            Self::Plain => PlannerKind::None,
            Self::Segments => PlannerKind::Uniform,
            Self::Plan => PlannerKind::Auto,
        }
    }

    /// The smallest budget that a chain fits this way, the reserve that planners keep included.
    pub fn need(self, measured: &Measured) -> Result<Bytes, PlanError> {
        let peak = match self {
            Self::Plain => measured.plain()?.peak,
            Self::Segments => in_segments(measured)?,
            Self::Plan if measured.chain.stages.len() > MOST_STAGES => in_segments(measured)?,
            Self::Plan => {
                let (_, schedule) = smallest_peak(&measured.chain)?;
                costed(measured, schedule)?.peak.min(in_segments(measured)?)
            }
        };
        Ok(with_reserve(peak))
    }

    /// The fastest schedule that fits a budget this way.
    pub fn plan(self, measured: &Measured, budget: Bytes) -> Result<Plan, PlanError> {
        let stages = measured.chain.stages.len();
        if self == Self::Plain || (self == Self::Plan && stages <= MOST_STAGES) {
            return measured.plan(&PlanRequest {
                planner: self.planner(),
                budget: Some(budget),
                ..PlanRequest::default()
            });
        }
        let plans = segmented(measured)?;
        let smallest = plans.iter().map(|plan| with_reserve(plan.peak)).min();
        let fitting = plans
            .into_iter()
            .filter(|plan| with_reserve(plan.peak) <= budget);
        let fastest = fitting.min_by(|a, b| a.step.0.total_cmp(&b.step.0));
        let smallest = smallest.unwrap_or(Bytes::MAX);
        fastest.ok_or(PlanError::Infeasible {
            planner: PlannerKind::Uniform,
            budget,
            smallest,
            smallest_of_all: smallest,
        })
    }
}

/// Equal segments of the counts that are tried.
fn segmented(measured: &Measured) -> Result<Vec<Plan>, PlanError> {
    let stages = measured.chain.stages.len();
    counts(stages)
        .into_iter()
        .map(|segments| costed(measured, planner::uniform(stages, segments)?))
        .collect()
}

/// The smallest peak of equal segments.
fn in_segments(measured: &Measured) -> Result<Bytes, PlanError> {
    let peaks = segmented(measured)?.into_iter().map(|plan| plan.peak);
    Ok(peaks.min().unwrap_or(Bytes::MAX))
}

/// Segment counts from 1 to the number of stages, evenly spread by ratio; all where they are few.
fn counts(stages: usize) -> Vec<usize> {
    let ratio = (stages as f64).powf(1.0 / (SEGMENT_COUNTS - 1) as f64);
    let mut counts: Vec<usize> = if stages <= SEGMENT_COUNTS {
        (1..=stages).collect()
    } else {
        (0..SEGMENT_COUNTS)
            .map(|power| (ratio.powi(power as i32).round() as usize).min(stages))
            .collect()
    };
    counts.dedup();
    counts
}

fn costed(measured: &Measured, schedule: Schedule) -> Result<Plan, PlanError> {
    Ok(measured.costed(Plan {
        planner: PlannerKind::Auto,
        schedule,
        peak: Bytes(0),
        step: Seconds(0.0),
        source: Source::SmallestPeak,
    })?)
}

/// The same training with each layer updated in the backward: a gradient is there for its own stage alone, and so is
/// what the optimizer takes for a while.
pub fn updated_in_backward(measured: &Measured) -> Measured {
    let mut measured = measured.clone();
    let Chain {
        stages, optimizer, ..
    } = &mut measured.chain;
    for (stage, held) in stages.iter_mut().zip(&mut measured.holds) {
        let update = std::mem::take(&mut stage.grad_bytes) + optimizer.temp_bytes;
        stage.backward_temp_bytes += update;
        for way in &mut stage.alternatives {
            way.backward_temp_bytes += update;
        }
        for output in &mut held.outputs {
            output.released_backward_temp_bytes += update;
        }
    }
    optimizer.temp_bytes = Bytes(0);
    measured
}

#[cfg(test)]
mod tests {
    use rekindle::profile::Holds;
    use rekindle_plan::{LossCost, OptimizerCost, Stage};

    use super::*;

    /// `stages` equal stages that keep 10 bytes and have 100 of parameters.
    fn equal(stages: usize, state: u64) -> Measured {
        let stage = Stage {
            forward_s: Seconds(1.0),
            backward_s: Seconds(2.0),
            output_bytes: Bytes(10),
            saved_bytes: Bytes(10),
            param_bytes: Bytes(100),
            grad_bytes: Bytes(100),
            ..Stage::default()
        };
        let weights = Bytes(100 * stages as u64);
        Measured {
            chain: Chain {
                input_bytes: Bytes(10),
                input_grad: false,
                fixed_bytes: weights,
                stages: vec![stage; stages],
                loss: LossCost::default(),
                optimizer: OptimizerCost {
                    state_bytes: Bytes(state * weights.0),
                    ..OptimizerCost::default()
                },
            },
            holds: vec![
                Holds {
                    input: true,
                    outputs: Vec::new(),
                };
                stages
            ],
            sweep_s: Seconds(0.0),
        }
    }

    #[test]
    fn an_update_in_backward_leaves_one_gradient_at_a_time() {
        // Where weights are nearly all: with plain SGD half of it goes, with momentum a third.
        for (state, share) in [(0, 1.0 / 2.0), (1, 2.0 / 3.0)] {
            let chain = equal(100, state);
            let before = Way::Plain.need(&chain).expect("a peak").0 as f64;
            let after = Way::Plain
                .need(&updated_in_backward(&chain))
                .expect("a peak");
            let left = after.0 as f64 / before;
            assert!((left - share).abs() < 0.1, "{left} for {state}");
        }
    }

    #[test]
    fn few_counts_are_all_tried_and_many_are_spread() {
        assert_eq!(counts(5), [1, 2, 3, 4, 5]);
        let spread = counts(10_000);
        assert_eq!((spread.first(), spread.last()), (Some(&1), Some(&10_000)));
        assert!(spread.len() <= SEGMENT_COUNTS && spread.is_sorted());
    }
}
