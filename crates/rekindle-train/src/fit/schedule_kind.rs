//! Whether a model of one size fits: plain, in segments, under a plan.

use rekindle::record::{Update, driver::Updates};
use rekindle_plan::{Bytes, Planner, Request};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::session::{MeasuredStep, Planned, RunError};

/// Stages beyond which plans are equal segments alone: the table of all schedules grows with their
/// square.
const MOST_STAGES: usize = 200;

/// Operations beyond which it is the same: hundreds of schedules are simulated for each size.
const MOST_OPERATIONS: usize = 20_000;

/// Segment counts that are tried.
const SEGMENT_COUNTS: usize = 24;

/// A kind of schedule that a model is run with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// Nothing recomputed.
    Plain,
    /// Segments of equal length.
    Segments,
    /// The best plan.
    Plan,
}

impl ScheduleKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Segments, Self::Plan];

    /// What tables call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Segments => "segments",
            Self::Plan => "plan",
        }
    }

    /// The planners that find its schedules. Many sizes are asked about, so plans are those over stages, which take a tenth
    /// of the time.
    fn planners(self, step: &MeasuredStep) -> Vec<Planner> {
        let (stages, operations) = (step.chain.stages.len(), step.operations());
        let few = stages <= MOST_STAGES && operations <= MOST_OPERATIONS;
        match self {
            Self::Plain => vec![Planner::None],
            Self::Plan if few => vec![Planner::Optimal],
            Self::Plan | Self::Segments => {
                let counts = spread(stages).into_iter();
                counts.map(|count| Planner::Segments(Some(count))).collect()
            }
        }
    }

    /// The fastest schedule that a training within a budget makes, if it takes at most `slowdown` plain steps. `step` gives a
    /// step with either update.
    ///
    /// # Errors
    ///
    /// Those of `step`, and of plans that make no sense.
    pub fn fits<E: From<RunError>>(
        self,
        updates: Updates,
        step: impl Fn(Update) -> Result<MeasuredStep, E>,
        budget: Bytes,
        slowdown: f64,
    ) -> Result<Option<Planned>, E> {
        let time = |plan: &Planned| plan.summary.predicted_time.0;
        let mut fastest: Option<Planned> = None;
        for &update in updates.each() {
            // The next update is tried only to fit.
            if fastest.is_some() {
                break;
            }
            let step = step(update)?;
            for planner in self.planners(&step) {
                let request = Request::of(planner, Some(budget));
                let faster = |plan: &Planned| {
                    let other = fastest.as_ref();
                    other.is_none_or(|other| time(plan) < time(other))
                };
                if let Some(plan) = step.try_plan(&request)?.filter(faster) {
                    fastest = Some(plan);
                }
            }
        }
        Ok(fastest.filter(|plan| plan.summary.slowdown() <= slowdown))
    }
}

/// Segment counts from 1 to the number of stages, evenly spread by ratio.
#[must_use]
pub fn spread(stages: usize) -> Vec<usize> {
    let ratio = (stages as f64).powf(1.0 / (SEGMENT_COUNTS - 1) as f64);
    let powers = (0..SEGMENT_COUNTS).map(|power| ratio.powi(power as i32).round() as usize);
    let mut counts: Vec<usize> = powers.map(|count| count.min(stages)).collect();
    counts.dedup();
    counts
}

#[cfg(test)]
mod tests {
    use rekindle_plan::{Chain, LossCost, OptimizerCost, Seconds, Stage};

    use super::*;

    /// `stages` equal stages that keep 10 bytes and have so many of parameters, whose gradients stay until the update comes
    /// after the step.
    fn equal(stages: usize, parameters: u64, update: Update) -> MeasuredStep {
        let gradients = match update {
            Update::After => parameters,
            Update::InBackward => 0,
        };
        let stage = Stage {
            forward_s: Seconds(1.0),
            backward_s: Seconds(2.0),
            output_bytes: Bytes(10),
            saved_bytes: Bytes(10),
            param_bytes: Bytes(parameters),
            grad_bytes: Bytes(gradients),
            ..Stage::default()
        };
        MeasuredStep::of_chain(Chain {
            input_bytes: Bytes(10),
            input_grad: false,
            fixed_bytes: Bytes(parameters * stages as u64),
            stages: vec![stage; stages],
            loss: LossCost::default(),
            optimizer: OptimizerCost::default(),
        })
    }

    fn plain(step: &MeasuredStep) -> Planned {
        let request = Request::of(Planner::None, None);
        step.plan(&request).expect("no budget")
    }

    #[test]
    fn a_plan_that_takes_too_long_does_not_fit() {
        let step = equal(16, 1, Update::After);
        let plain = plain(&step);
        let budget = Bytes(plain.summary.predicted_peak.0 - 60);
        let fits = |way: ScheduleKind, slowdown| {
            let step = |_| Ok::<_, RunError>(step.clone());
            let found = way.fits(Updates::One(Update::After), step, budget, slowdown);
            found.expect("planned").map(|plan| plan.summary.slowdown())
        };
        let ratio = fits(ScheduleKind::Plan, 2.0).expect("recomputes within two plain steps");
        assert!(ratio > 1.0, "{ratio}");
        assert!(fits(ScheduleKind::Plan, ratio - 0.01).is_none());
        assert!(fits(ScheduleKind::Plan, ratio).is_some());
        assert!(fits(ScheduleKind::Plain, 2.0).is_none());
    }

    /// Weights are nearly all: nothing that is recomputed makes room for gradients.
    #[test]
    fn a_plan_updates_in_the_backward_pass_where_a_training_would() {
        let after = equal(100, 100, Update::After);
        let plain = plain(&after);
        let plain = plain.summary.predicted_peak;
        let fits = |updates, share: f64| {
            let budget = Bytes((plain.0 as f64 * share) as u64);
            let step = |update| Ok::<_, RunError>(equal(100, 100, update));
            let found = ScheduleKind::Plan.fits(updates, step, budget, 2.0);
            let plan = found.expect("planned")?;
            // A chain does not say when it updates; gradients stay until it does.
            let stage = &plan.staged.chain.stages[0];
            Some(match stage.grad_bytes {
                Bytes::ZERO => Update::InBackward,
                _ => Update::After,
            })
        };
        let only = Updates::One(Update::After);
        assert_eq!(fits(only, 0.6), None);
        assert_eq!(fits(Updates::ToFit, 0.6), Some(Update::InBackward));
        assert_eq!(fits(Updates::ToFit, 1.2), Some(Update::After));
        assert_eq!(fits(Updates::ToFit, 0.4), None);
    }

    #[test]
    fn counts_of_long_chains_are_spread() {
        let spread = spread(10_000);
        assert_eq!((spread.first(), spread.last()), (Some(&1), Some(&10_000)));
        assert!(spread.len() <= SEGMENT_COUNTS && spread.is_sorted());
    }
}
