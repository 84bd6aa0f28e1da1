//! The update of a step is chosen by its budget; an optimizer that fails in it.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig},
    tensor::{Device, Tensor},
};
use rekindle::{
    plan::Planner,
    record::{InBackwardBecause, Optimizer, RecordError, Update, driver::Updates},
};
use rekindle_plan::Bytes;

/// Weights are nearly all: nothing that is recomputed makes room for their gradients.
#[test]
fn parameters_are_updated_in_the_backward_pass_where_a_budget_is_not_met_otherwise() {
    own_process!();
    let device = Device::flex().autodiff();
    let layer = |_| LinearConfig::new(256, 256).init(&device);
    let mut model: Vec<Linear> = (0..24).map(layer).collect();
    // Parameters are made at their first use.
    drop(model.valid());
    let batch = || Tensor::<2>::ones([8, 256], &device);
    let loss = |model: &Vec<Linear>, input| {
        let output = model.iter().fold(input, |x, layer| layer.forward(x).tanh());
        output.square().mean()
    };
    let mut adam = AdamConfig::new().init();
    let (first, own) = (batch(), model.clone());
    let within = |updates, budget: Bytes| {
        let recorded = rekindle::record(&own, &first, loss).expect("recorded");
        recorded.with_updates(&adam, updates).within(budget)
    };
    let smallest = |updates| match within(updates, Bytes(1)) {
        Err(RecordError::Infeasible { smallest, .. }) => smallest,
        other => panic!("{:?}", other.err()),
    };
    let after = smallest(Updates::One(Update::After));
    let in_backward = smallest(Updates::One(Update::InBackward));
    let either = smallest(Updates::ToFit);
    eprintln!("at least {after} after, {in_backward} in the backward pass, {either} of both");
    assert!(in_backward.0 * 10 < after.0 * 9);
    assert!(either.0 * 20 < (in_backward.0 + after.0) * 10);

    let ample = Bytes(2 * after.0);
    let step = within(Updates::ToFit, ample).expect("planned");
    assert_eq!(step.update(), Update::After);
    assert_eq!(step.plan().in_backward_because, None);
    drop(step);
    let tight = Bytes((in_backward.0 + after.0) / 2);
    let mut step = within(Updates::ToFit, tight).expect("planned");
    assert_eq!(step.update(), Update::InBackward);
    match step.plan().in_backward_because {
        Some(InBackwardBecause {
            smallest_bytes: smallest,
        }) => assert!(smallest > tight, "{smallest}"),
        other => panic!("{other:?}"),
    }
    // A step that is planned again chooses again, and one that is refused stays as it is.
    step.set_budget(ample, Planner::Auto).expect("planned");
    assert_eq!(step.update(), Update::After);
    assert!(step.set_budget(Bytes(1), Planner::Auto).is_err());
    assert_eq!(step.update(), Update::After);
    step.set_budget(tight, Planner::Auto).expect("planned");
    assert_eq!(step.update(), Update::InBackward);
    drop((first, own));
    let output = step.run_updating(&mut model, batch(), 1e-3, &mut adam);
    let output = output.expect("run");
    assert!(output.gradients.is_empty());
    assert!(output.memory.peak_in_use_bytes <= tight);
}

/// An optimizer of the user's own, with a defect.
struct Defective(ModuleOptimizer);

impl Optimizer for Defective {
    fn for_trial(&self) -> Self {
        Self(self.0.clone())
    }

    fn step<M: Module>(&mut self, rate: f64, module: M, gradients: GradientsParams) -> M {
        assert!(rate >= 0.0, "a rate of {rate}");
        self.0.step(rate, module, gradients)
    }
}

#[test]
fn a_panic_of_an_optimizer_says_whose_update_it_was_in() {
    let device = Device::flex().autodiff();
    let mut model = LinearConfig::new(4, 4).init(&device);
    let batch = Tensor::<2>::ones([2, 4], &device);
    let mut optimizer = Defective(SgdConfig::new().init());
    let loss = |model: &Linear, input| model.forward(input).square().mean();
    let recorded = rekindle::record(&model, &batch, loss).expect("recorded");
    let step = recorded.with_update_in_backward(&optimizer).plain();
    let step = step.expect("planned");
    let failed = step.run_updating(&mut model, batch, -1.0, &mut optimizer);
    let said = failed.err().expect("a panic").to_string();
    assert_eq!(
        said,
        "the step failed while it ran: a rate of -1, in the update of `bias`"
    );
}
