//! Steps that are recorded at their first run, for training loops of other crates: burn-train's learner calls a method
//! of the model, which cannot store a step.
//!
//! Each thread keeps its own steps, one per kind: a learner on several devices runs one thread per device.

use std::{any::Any, any::TypeId, cell::RefCell, collections::HashMap};

use burn::module::Module;

use super::{Output, RecordError, Recorded, Step, record};
use crate::{step_result::StepResult, tensor_tree::TensorTree};

thread_local! {
    static KEPT: RefCell<HashMap<TypeId, Box<dyn Any>>> = RefCell::default();
}

/// Runs `step` as a recorded step that this thread keeps. The first call records it and calls `plan` to plan it:
///
/// ```no_run
/// # use burn::{nn::{Linear, LinearConfig}, optim::AdamConfig, prelude::*};
/// # use rekindle::record::{RecordError, run_recorded};
/// # let device = Device::flex().autodiff();
/// # let layer = LinearConfig::new(4, 4).init(&device);
/// # let input = Tensor::<2>::ones([2, 4], &device);
/// let loss = |layer: &Linear, input: Tensor<2>| layer.forward(input).square().mean();
/// let output = run_recorded(&layer, input, loss, |recorded| {
///     recorded.with_optimizer(&AdamConfig::new().init()).within("1GiB")
/// })?;
/// # Ok::<(), RecordError>(())
/// ```
///
/// Steps are identified by the types of model, batch and closure, so `step` must not capture anything (a capture is a
/// compile error); pass changing values in the batch. `plan` is called again for a model with other parameters.
/// [`forget`] drops the steps.
///
/// # Errors
///
/// The errors of [`record`], of the planning in `plan`, and of [`Step::run`].
pub fn run_recorded<M, I, R, F>(
    model: &M,
    batch: I,
    step: F,
    plan: impl FnOnce(Recorded<'_, M, I, R, F>) -> Result<Step<M, I, R, F>, RecordError>,
) -> Result<Output<R::Auxiliary>, RecordError>
where
    M: Module + 'static,
    I: TensorTree,
    R: StepResult + 'static,
    F: Fn(&M, I) -> R + 'static,
{
    const {
        assert!(
            size_of::<F>() == 0,
            "a step that is kept must not capture anything: pass it in with the batch"
        );
    }
    let kind = TypeId::of::<Step<M, I, R, F>>();
    // Removed while it runs, because a step may run other steps.
    let kept = KEPT.with_borrow_mut(|kept| kept.remove(&kind));
    if let Some(kept) = kept.and_then(|kept| kept.downcast::<Step<M, I, R, F>>().ok()) {
        match kept.run(model, batch.clone()) {
            Err(RecordError::Parameter { .. }) => {
                log::info!("another model than before: its step is recorded and planned");
            }
            result => {
                KEPT.with_borrow_mut(|all| all.insert(kind, kept));
                return result;
            }
        }
    }
    let new = plan(record(model, &batch, step)?)?;
    log::info!("the step is recorded and planned: {}", new.plan());
    let result = new.run(model, batch);
    KEPT.with_borrow_mut(|kept| kept.insert(kind, Box::new(new)));
    result
}

/// Drops the steps that this thread keeps for [`run_recorded`], and frees their plans.
pub fn forget() {
    drop(KEPT.take());
}
