//! Memory in use stays what it is after steps on a tape, also after those that fail or are given up.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::SgdConfig,
    tensor::{Device, Distribution, Tensor, activation::gelu},
};
use rekindle::{StepSeed, Tape, tape::TapeError};

use crate::watch::{STEPS, WARM_UP, Watch};

const WIDTH: usize = 16;
const ROWS: usize = 8;

/// What a checkpoint says that cannot run.
const GIVES_UP: &str = "gives up";

#[derive(Module, Debug)]
struct Net {
    before: Linear,
    first: Linear,
    second: Linear,
    after: Linear,
}

impl Net {
    fn new() -> Self {
        let device = Device::flex().autodiff();
        let linear = || LinearConfig::new(WIDTH, WIDTH).init(&device);
        Self {
            before: linear(),
            first: linear(),
            second: linear(),
            after: linear(),
        }
    }

    /// Two checkpoints in ordinary code, and a layer that says whether it gives up.
    fn forward(
        &self,
        input: Tensor<2>,
        tape: &mut Tape,
        gives_up: impl Fn() -> bool + Send + 'static,
    ) -> Tensor<2> {
        let x = gelu(self.before.forward(input));
        let skip = x.clone();
        let x = tape.checkpoint_with(&self.first, x, move |layer, x| {
            assert!(!gives_up(), "{GIVES_UP}");
            gelu(layer.forward(x))
        });
        let x = tape.checkpoint_with(&self.second, x, |layer, x| gelu(layer.forward(x)));
        self.after.forward(x + skip)
    }
}

fn input() -> Tensor<2> {
    let device = Device::flex().autodiff();
    Tensor::random([ROWS, WIDTH], Distribution::Default, &device)
}

fn tape(step: usize) -> Tape {
    Tape::new(StepSeed::new(1, step as u64))
}

/// Runs so many steps, of each of which nothing may be left.
fn assert_nothing_stays(what: &str, steps: usize, mut step: impl FnMut(usize)) {
    let mut watch = Watch::new();
    for number in 0..steps {
        step(number);
        watch.note();
    }
    watch.assert_flat(what);
}

/// Steps that fail, or are given up.
const FAILING: usize = WARM_UP + 300;

/// Said hundreds of times, it would hide what is wrong.
fn keep_quiet() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(GIVES_UP) {
            told(panic);
        }
    }));
}

#[test]
fn hundreds_of_steps_leave_nothing() {
    own_process!();
    let mut model = Net::new();
    let mut optimizer = SgdConfig::new().init();
    let input = input();
    assert_nothing_stays("steps on a tape", STEPS, |step| {
        let mut tape = tape(step);
        let output = model.forward(input.clone(), &mut tape, || false);
        let gradients = tape.backward(output.square().mean(), &model).expect("runs");
        model = optimizer.step(1e-3, model.clone(), gradients);
    });
}

#[test]
fn a_step_that_returns_early_leaves_nothing() {
    own_process!();
    keep_quiet();
    let model = Net::new();
    let input = input();

    fn given_up(model: &Net, input: Tensor<2>, step: usize) -> Result<(), usize> {
        let mut tape = tape(step);
        let output = model.forward(input, &mut tape, || false);
        let _loss = output.square().mean();
        Err(step)
    }
    assert_nothing_stays("an early return after the loss", FAILING, |step| {
        assert_eq!(given_up(&model, input.clone(), step), Err(step));
    });

    assert_nothing_stays("a checkpoint that panics in the forward", FAILING, |step| {
        let run = || {
            let mut tape = tape(step);
            // The second of two forwards, so that the first is in the graph.
            let x = model.forward(input.clone(), &mut tape, || false);
            let x = model.forward(x, &mut tape, || true);
            tape.backward(x.mean(), &model)
        };
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    });
}

#[test]
fn a_backward_that_fails_leaves_nothing() {
    own_process!();
    keep_quiet();
    let model = Net::new();
    let input = input();

    assert_nothing_stays(
        "a checkpoint that panics when it runs again",
        FAILING,
        |step| {
            let mut tape = tape(step);
            let runs = std::sync::atomic::AtomicUsize::new(0);
            let again = move || runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 0;
            let output = model.forward(input.clone(), &mut tape, again);
            let error = tape.backward(output.mean(), &model).expect_err("gives up");
            let panic = GIVES_UP.to_owned();
            assert_eq!(error, TapeError::Burn { panic });
        },
    );

    assert_nothing_stays("a loss of several values", FAILING, |step| {
        let mut tape = tape(step);
        let output = model.forward(input.clone(), &mut tape, || false);
        let refused = tape.backward(output.flatten(0, 1), &model).err();
        let elements = ROWS * WIDTH;
        assert_eq!(refused, Some(TapeError::LossNotScalar { elements }));
    });

    assert_nothing_stays("a captured value", FAILING, |step| {
        let mut tape = tape(step);
        let captured = model.before.forward(input.clone());
        let output = tape.checkpoint_with(&model.first, input.clone(), move |layer, x| {
            layer.forward(x) + captured.clone()
        });
        let refused = tape.backward(output.mean(), &model).err();
        assert_eq!(refused, Some(TapeError::Captured { checkpoint: 0 }));
    });

    assert_nothing_stays("an output of another tape", FAILING, |step| {
        let mut others = tape(step);
        let output = model.forward(input.clone(), &mut others, || false);
        let mut own = tape(step);
        let output = model.forward(output, &mut own, || false);
        let refused = own.backward(output.mean(), &model).err();
        assert_eq!(refused, Some(TapeError::OtherTape));
    });
}

#[test]
fn a_loss_that_is_no_number_leaves_nothing() {
    own_process!();
    let model = Net::new();
    let input = input() * f32::NAN;
    assert_nothing_stays("a loss that is no number", FAILING, |step| {
        let mut tape = tape(step);
        let output = model.forward(input.clone(), &mut tape, || false);
        let gradients = tape.backward(output.mean(), &model).expect("runs");
        let bias = gradients.get::<1>(model.before.bias.as_ref().expect("a bias").id);
        let value = bias.expect("a gradient").sum().into_scalar::<f32>();
        assert!(value.is_nan());
    });
}
