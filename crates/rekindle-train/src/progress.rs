//! What a snapshot says of its run, apart from tensors.

use serde::{Deserialize, Serialize};

use crate::record::{EvalRecord, StepRecord, number};

/// What a run has done, apart from its tensors. It does not grow with the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Steps that are done.
    pub(crate) steps: usize,
    #[serde(deserialize_with = "number")]
    pub(crate) first_loss: f64,
    #[serde(deserialize_with = "number")]
    pub(crate) last_loss: f64,
    /// The last evaluation.
    pub(crate) evaluation: Option<EvalRecord>,
    /// The evaluation with the smallest loss.
    pub(crate) best: Option<EvalRecord>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            steps: 0,
            first_loss: f64::NAN,
            last_loss: f64::NAN,
            evaluation: None,
            best: None,
        }
    }
}

impl Progress {
    pub(crate) fn stepped(&mut self, step: &StepRecord) {
        if self.steps == 0 {
            self.first_loss = step.loss;
        }
        self.steps = step.step;
        self.last_loss = step.loss;
    }

    /// The step of the last evaluation, 0 before the first.
    pub(crate) fn evaluated_at(&self) -> usize {
        self.evaluation.as_ref().map_or(0, |last| last.step)
    }

    /// Whether no evaluation before had so small a loss.
    pub(crate) fn evaluated(&mut self, evaluation: &EvalRecord) -> bool {
        self.evaluation = Some(evaluation.clone());
        let bound = self.best.as_ref().map_or(f64::INFINITY, |best| best.loss);
        let better = evaluation.loss < bound;
        if better {
            self.best = Some(evaluation.clone());
        }
        better
    }
}
