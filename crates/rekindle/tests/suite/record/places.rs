//! Which tensors of a module a step takes for one, beside plain burn loops: bit for bit in loss, gradients and all tensors.

use burn::{
    module::{Module, ModuleVisitor, Param},
    nn::{Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig},
    tensor::{Device, Distribution, Tensor},
};
use rekindle::{
    record::{RecordError, Step},
    retie,
};
use rekindle_plan::Bytes;

const STEPS: usize = 6;
const RATE: f64 = 0.1;

/// Tables that grow with what else burn's graph holds, and nobody counts.
const TABLES: Bytes = Bytes(4096);

type Layers = Vec<Linear>;

fn device() -> Device {
    Device::flex().autodiff()
}

fn layer(device: &Device) -> Linear {
    let layer = LinearConfig::new(3, 3).init(device);
    // Clones of a layer without values yet would be frozen together.
    drop(layer.valid());
    layer
}

fn batch(device: &Device) -> Tensor<2> {
    Tensor::random([4, 3], Distribution::Normal(0.0, 1.0), device)
}

/// One layer after the other.
fn in_turn(layers: &Layers, input: Tensor<2>) -> Tensor<1> {
    let output = layers.iter().fold(input, |x, one| one.forward(x).tanh());
    output.square().mean()
}

/// What each place of a module holds, or its gradient.
struct Bits<'a>(Option<&'a GradientsParams>, Vec<Option<Vec<u32>>>);

impl Bits<'_> {
    fn of(model: &Layers, gradients: Option<&GradientsParams>) -> Vec<Option<Vec<u32>>> {
        let mut bits = Bits(gradients, Vec::new());
        model.visit(&mut bits);
        bits.1
    }
}

impl ModuleVisitor for Bits<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = match self.0 {
            Some(gradients) => gradients.get::<D>(param.id),
            None => Some(param.val()),
        };
        let bits = |tensor: Tensor<D>| {
            let data = tensor.without_autodiff().into_data();
            data.iter::<f32>().map(f32::to_bits).collect()
        };
        self.1.push(tensor.map(bits));
    }
}

fn loss_bits(loss: Tensor<1>) -> Vec<u32> {
    let data = loss.without_autodiff().into_data();
    data.iter::<f32>().map(f32::to_bits).collect()
}

fn adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

fn recorded<F: Fn(&Layers, Tensor<2>) -> Tensor<1>>(
    model: &Layers,
    batch: &Tensor<2>,
    loss: F,
) -> Step<Layers, Tensor<2>, Tensor<1>, F> {
    let recorded = rekindle::record(model, batch, loss).expect("recorded");
    recorded.with_optimizer(&adam()).plain().expect("planned")
}

/// Trains for some steps with burn alone and with a recorded step; `change` changes the model before each.
fn check(
    model: Layers,
    change: impl Fn(usize, Layers) -> Layers,
    loss: impl Fn(&Layers, Tensor<2>) -> Tensor<1> + Copy,
) {
    let device = device();
    let step = recorded(&model, &batch(&device), loss);
    let (mut ours, mut plain) = (model.clone(), model);
    let mut optimizers = [adam(), adam()];
    for number in 0..STEPS {
        (ours, plain) = (change(number, ours), change(number, plain));
        let batch = batch(&device);
        let expected = loss(&plain, batch.clone());
        let output = step.run(&ours, batch).expect("run");
        assert_eq!(
            loss_bits(output.loss),
            loss_bits(expected.clone()),
            "step {number}"
        );
        let gradients = GradientsParams::from_grads(expected.backward(), &plain);
        let [of_ours, of_plain] = [(&ours, &output.gradients), (&plain, &gradients)]
            .map(|(model, gradients)| Bits::of(model, Some(gradients)));
        assert!(of_plain.iter().any(Option::is_some), "step {number}");
        assert_eq!(of_ours, of_plain, "gradients of step {number}");
        assert!(
            output.memory.peak_in_use_bytes <= output.predicted_peak + TABLES,
            "step {number}: {} of {}",
            output.memory.peak_in_use_bytes,
            output.predicted_peak
        );
        ours = optimizers[0].step(RATE, ours, output.gradients);
        plain = optimizers[1].step(RATE, plain, gradients);
        assert_eq!(
            Bits::of(&ours, None),
            Bits::of(&plain, None),
            "after step {number}"
        );
    }
}

fn unchanged(_: usize, model: Layers) -> Layers {
    model
}

/// The target network of DQN, the teacher of BYOL and DINO: it has the ids of what it was copied from.
#[test]
fn a_frozen_copy_keeps_its_own_values() {
    own_process!();
    let online = layer(&device());
    let frozen = online.clone().no_grad();
    let towards = |online: &Linear, target: &Linear, input: Tensor<2>| {
        let target = target.forward(input.clone().add_scalar(1.0));
        (online.forward(input).tanh() - target).square().mean()
    };
    check(
        vec![online.clone(), frozen.clone()],
        unchanged,
        |both, input| towards(&both[0], &both[1], input),
    );
    // burn's optimizer updates the first tensor of an id, which is then the frozen one: so does ours.
    check(
        vec![frozen.clone(), online.clone()],
        unchanged,
        |both, input| towards(&both[1], &both[0], input),
    );
    // A copy of some steps ago.
    check(
        vec![online.clone(), frozen],
        |step, mut both| {
            if step % 2 == 1 {
                both[1] = both[0].clone().no_grad();
            }
            both
        },
        |both, input| towards(&both[0], &both[1], input),
    );
    // One without autodiff.
    check(
        vec![online.clone(), online.valid()],
        unchanged,
        |both, input| towards(&both[0], &both[1], input),
    );
}

#[test]
fn updates_in_the_backward_pass_are_the_trained_copys() {
    own_process!();
    let device = device();
    let online = layer(&device);
    let mut ours = vec![online.clone().no_grad(), online];
    let before = Bits::of(&ours, None);
    let loss = |both: &Layers, input: Tensor<2>| {
        let target = both[0].forward(input.clone());
        (both[1].forward(input).tanh() - target).square().mean()
    };
    let sgd = || -> ModuleOptimizer { SgdConfig::new().init() };
    let mut optimizer = sgd();
    let batch = batch(&device);
    let step = rekindle::record(&ours, &batch, loss)
        .expect("recorded")
        .with_update_in_backward(&optimizer)
        .plain()
        .expect("planned");
    for _ in 0..STEPS {
        // The trained one alone, so that burn's optimizer finds it.
        let mut alone = vec![ours[1].clone()];
        let both = vec![ours[0].clone(), alone[0].clone()];
        let gradients = GradientsParams::from_grads(loss(&both, batch.clone()).backward(), &alone);
        alone = sgd().step(RATE, alone, gradients);
        drop(both);
        step.run_updating(&mut ours, batch.clone(), RATE, &mut optimizer)
            .expect("run");
        let after = Bits::of(&ours, None);
        assert_eq!(after[..2], before[..2], "the frozen copy");
        assert_eq!(after[2..], Bits::of(&alone, None));
    }
}

/// Clones are one tensor until burn's optimizer has updated the first of them.
#[test]
fn clones_that_train_are_told_apart_once_they_differ() {
    own_process!();
    let one = layer(&device());
    check(vec![one.clone(), one.clone()], unchanged, in_turn);
    check(
        vec![one.clone(), one.clone()],
        |_, model| retie(model),
        in_turn,
    );
    // Updates in the backward pass keep them one.
    let device = device();
    let (mut ours, mut plain) = (vec![one.clone(), one.clone()], vec![one.clone(), one]);
    let batch = batch(&device);
    let mut optimizers = [adam(), adam()];
    let step = rekindle::record(&ours, &batch, in_turn)
        .expect("recorded")
        .with_update_in_backward(&optimizers[0])
        .plain()
        .expect("planned");
    for number in 0..STEPS {
        step.run_updating(&mut ours, batch.clone(), RATE, &mut optimizers[0])
            .expect("run");
        let gradients =
            GradientsParams::from_grads(in_turn(&plain, batch.clone()).backward(), &plain);
        plain = retie(optimizers[1].step(RATE, plain, gradients));
        assert_eq!(
            Bits::of(&ours, None),
            Bits::of(&plain, None),
            "after step {number}"
        );
    }
    assert_eq!(step.recordings(), (1, 0));
}

#[test]
fn layers_that_change_places_or_go_are_noticed_at_once() {
    own_process!();
    let device = device();
    let layers: Layers = (0..4).map(|_| layer(&device)).collect();
    check(
        layers.clone(),
        |step, mut layers| {
            if step == 4 {
                layers.swap(0, 3);
            }
            layers
        },
        in_turn,
    );
    check(
        layers.clone(),
        |step, mut layers| {
            if step >= 4 {
                layers.truncate(3);
            }
            layers
        },
        in_turn,
    );
    let step = recorded(&layers, &batch(&device), in_turn);
    let more = [layers.clone(), vec![layer(&device)]].concat();
    for _ in 0..4 {
        step.run(&layers, batch(&device)).expect("run");
    }
    match step.run(&more, batch(&device)) {
        Err(RecordError::Parameter { path }) => assert!(path.starts_with("4."), "{path}"),
        other => panic!("{:?}", other.map(|_| ())),
    }
    step.run(&layers, batch(&device)).expect("goes on");
}

/// A frozen layer that begins to train, and the other way round.
#[test]
fn layers_that_begin_or_cease_to_train_are_noticed_at_once() {
    own_process!();
    let device = device();
    let layers: Layers = (0..3).map(|_| layer(&device)).collect();
    let training = |layer: Linear, on: bool| Linear {
        weight: layer.weight.set_require_grad(on),
        bias: layer.bias.map(|bias| bias.set_require_grad(on)),
    };
    for from_frozen in [true, false] {
        check(
            layers.clone(),
            |step, mut layers| {
                let first = layers.remove(0);
                layers.insert(0, training(first, (step >= 4) == from_frozen));
                layers
            },
            in_turn,
        );
    }
}
