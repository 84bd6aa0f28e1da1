//! Recorded steps in burn-train's learner (feature `learner`).
//!
//! In a model's [`TrainStep`](burn_train::TrainStep) one call takes the place of the backward pass:
//!
//! ```
//! # use burn::{nn::{Linear, loss::CrossEntropyLossConfig}, optim::AdamConfig, prelude::*};
//! # use burn_train::{ClassificationOutput, TrainOutput, TrainStep};
//! # #[derive(Module, Debug)]
//! # struct Classifier { linear: Linear }
//! # type Batch = (Tensor<2>, Tensor<1, Int>);
//! # impl Classifier {
//! #     fn classify(&self, (points, classes): Batch) -> ClassificationOutput {
//! #         let logits = self.linear.forward(points);
//! #         let loss = CrossEntropyLossConfig::new().init(&logits.device());
//! #         let loss = loss.forward(logits.clone(), classes.clone());
//! #         ClassificationOutput::new(loss, logits, classes)
//! #     }
//! # }
//! impl TrainStep for Classifier {
//!     type Input = Batch;
//!     type Output = ClassificationOutput;
//!
//!     fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
//!         // let item = self.classify(batch);
//!         // TrainOutput::new(self, item.loss.backward(), item)
//!         rekindle::learner::train_output(self, batch, Self::classify, |recorded| {
//!             recorded.with_optimizer(&AdamConfig::new().init()).within("60%")
//!         })
//!     }
//! }
//! ```
//!
//! The step is recorded and planned at the learner's first batch, by each thread that trains. Metrics, snapshots,
//! learning rates, accumulation and validation stay burn-train's own. Its metrics run on another thread and may hold
//! the items of several steps, which count towards the budget.

use burn::{
    module::Module,
    tensor::{Int, Tensor},
};
use burn_train::{
    ClassificationOutput, MultiLabelClassificationOutput, RegressionOutput, SequenceOutput,
    TrainOutput,
};

use crate::{
    record::{RecordError, Recorded, Step, run_recorded},
    step_result::StepResult,
    tensor_tree::TensorTree,
};

/// Runs `step` as a recorded step that `plan` plans at the first call. See
/// [`run_recorded`], also for the requirements on `step`.
///
/// # Panics
///
/// If the step cannot be recorded, planned or run: burn-train's train steps return no errors.
pub fn train_output<M, I, R, F>(
    model: &M,
    batch: I,
    step: F,
    plan: impl FnOnce(Recorded<'_, M, I, R, F>) -> Result<Step<M, I, R, F>, RecordError>,
) -> TrainOutput<R>
where
    M: Module + 'static,
    I: TensorTree,
    R: StepResult + 'static,
    F: Fn(&M, I) -> R + 'static,
{
    match run_recorded(model, batch, step, plan) {
        Ok(output) => TrainOutput {
            grads: output.gradients,
            item: R::join(output.loss, output.auxiliary),
        },
        Err(error) => panic!("the recorded train step failed: {error}"),
    }
}

/// `loss` and the other fields of an item that are returned with it.
macro_rules! item {
    ($item:ident { $($field:ident: $type:ty),* }) => {
        impl StepResult for $item {
            type Auxiliary = ($($type,)*);

            fn split(self) -> (Tensor<1>, Self::Auxiliary) {
                (self.loss, ($(self.$field,)*))
            }

            fn join(loss: Tensor<1>, ($($field,)*): Self::Auxiliary) -> Self {
                Self { loss, $($field),* }
            }
        }
    };
}

item!(ClassificationOutput { output: Tensor<2>, targets: Tensor<1, Int> });
item!(MultiLabelClassificationOutput { output: Tensor<2>, targets: Tensor<2, Int> });
item!(RegressionOutput { output: Tensor<2>, targets: Tensor<2> });
item!(SequenceOutput {
    logits: Tensor<3>,
    predictions: Option<Tensor<2, Int>>,
    targets: Tensor<2, Int>
});
