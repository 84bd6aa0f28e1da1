//! Layers that cheat are caught: ones that give something else when they are computed again.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Distribution, Tensor},
};
use rekindle::{
    Executor, Layer, Sequential, StepSeed,
    executor::{Recheck, StepError},
};
use rekindle_plan::planner;

const WIDTH: usize = 6;
const DEPTH: usize = 4;
const CHEAT: usize = 1;

/// How a layer's later runs differ from its first.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cheat {
    None,
    Values,
    /// The same rows in another order.
    Order,
    Shape,
    NotANumber,
    /// Not a cheat: the lowest number that there is, as masks have it.
    Lowest,
}

#[derive(Module, Debug)]
struct Cheating {
    linear: Linear,
    #[module(skip)]
    cheat: Arc<Cheat>,
    #[module(skip)]
    runs: Arc<AtomicUsize>,
}

impl Layer for Cheating {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let again = self.runs.fetch_add(1, Relaxed) > 0;
        let output = self.linear.forward(input);
        match *self.cheat {
            Cheat::Values if again => output + 0.01,
            Cheat::Order if again => output.flip([0]),
            Cheat::Lowest => output * 0.0 + f32::MIN,
            Cheat::Shape if again => Tensor::cat(vec![output.clone(), output], 0),
            Cheat::NotANumber => output * f32::NAN,
            _ => output,
        }
    }

    fn draws_random(&self) -> bool {
        false
    }
}

fn step(cheat: Cheat, recheck: Recheck) -> Option<StepError> {
    let device = Device::flex().autodiff();
    let layers = (0..DEPTH).map(|stage| Cheating {
        linear: LinearConfig::new(WIDTH, WIDTH).init(&device),
        cheat: Arc::new(if stage == CHEAT { cheat } else { Cheat::None }),
        runs: Arc::default(),
    });
    let model = Sequential::new(layers.collect());
    Executor::new(planner::uniform(DEPTH, 2).expect("in range"))
        .rechecking(recheck)
        .step(
            &model,
            Tensor::random([3, WIDTH], Distribution::Default, &device),
            StepSeed::new(0, 0),
            |output| output.powf_scalar(2.0).mean(),
        )
        .err()
}

#[test]
fn other_values_are_caught_where_values_are_compared() {
    let caught = Some(StepError::RecomputedValues { stage: CHEAT });
    assert_eq!(step(Cheat::Values, Recheck::Values), caught);
    assert_eq!(step(Cheat::Values, Recheck::Shapes), None);
    assert_eq!(step(Cheat::Order, Recheck::Values), caught);
}

#[test]
fn other_shapes_are_caught_unless_nothing_is_compared() {
    for recheck in [Recheck::Values, Recheck::Shapes] {
        assert_eq!(
            step(Cheat::Shape, recheck),
            Some(StepError::RecomputedShape {
                stage: CHEAT,
                first: vec![vec![3, WIDTH]],
                again: vec![vec![6, WIDTH]],
            })
        );
    }
}

#[test]
fn values_must_be_finite_where_they_are_compared() {
    // The stages behind it pass it on; the first one is named.
    let caught = Some(StepError::NotFinite { stage: CHEAT });
    assert_eq!(step(Cheat::NotANumber, Recheck::Values), caught);
    assert_eq!(step(Cheat::NotANumber, Recheck::Shapes), None);
}

#[test]
fn the_lowest_number_is_a_number() {
    let error = step(Cheat::Lowest, Recheck::Values);
    // What the next layer makes of it may be none.
    assert_ne!(error, Some(StepError::NotFinite { stage: CHEAT }));
}

#[test]
fn honest_layers_pass() {
    assert_eq!(step(Cheat::None, Recheck::Values), None);
}
