//! A step that is not the recorded one any more is noticed: numbers that change, batches of other shapes.

use std::{cell::Cell, time::Instant};

use burn::{
    module::Module,
    nn::{Dropout, DropoutConfig, Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Device, Distribution, Tensor},
};
use rekindle::record::{Comparison, RecordError, Step};
use rekindle_plan::{Bytes, Seconds};

/// Tables that grow with what else burn's graph holds, and nobody counts.
const TABLES: Bytes = Bytes(4096);

fn weight_bits(gradients: &GradientsParams, layer: &Linear) -> Vec<u32> {
    let gradient = gradients.get::<2>(layer.weight.id).expect("a gradient");
    gradient
        .into_data()
        .iter::<f32>()
        .map(f32::to_bits)
        .collect()
}

#[test]
fn a_loss_weight_that_changes_each_step_is_never_silently_wrong() {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(6, 5).init(&device);
    let weight = Cell::new(1.0);
    let loss =
        |model: &Linear, input: Tensor<2>| model.forward(input).square().mean() * weight.get();
    let input = Tensor::<2>::random([4, 6], Distribution::Default, &device);
    let step = rekindle::record(&model, &input, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    let planned = step.graph();
    for place in 0..8 {
        // The same for two steps, then another in every step.
        weight.set(if place < 2 { 1.0 } else { f64::from(place) });
        let output = step.run(&model, input.clone()).expect("run");
        let plain = GradientsParams::from_grads(loss(&model, input.clone()).backward(), &model);
        assert_eq!(
            weight_bits(&output.gradients, &model),
            weight_bits(&plain, &model),
            "step {place}"
        );
    }
    // Six steps differ from the ones before, in a number: nothing is measured or planned again.
    assert_eq!(step.recordings(), (1, 6));
    assert_eq!(step.graph(), planned);
}

#[test]
fn batches_of_other_shapes_get_plans_of_their_own_that_are_kept() {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(6, 5).init(&device);
    let loss = |model: &Linear, input: Tensor<2>| model.forward(input).square().mean();
    let batch = |rows| Tensor::<2>::random([rows, 6], Distribution::Default, &device);
    let first = batch(8);
    let step = rekindle::record(&model, &first, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    for rows in [8, 3, 8, 3, 5] {
        let input = batch(rows);
        let output = step.run(&model, input.clone()).expect("run");
        let plain = GradientsParams::from_grads(loss(&model, input).backward(), &model);
        assert_eq!(
            weight_bits(&output.gradients, &model),
            weight_bits(&plain, &model),
            "{rows} rows"
        );
    }
    assert_eq!(step.recordings(), (3, 0));
}

/// What a step that differs from its recording computes, beside the plain loop, in the very step: by code that decides
/// otherwise, a number, and a gradient that is cut off without an operation.
#[test]
fn a_change_is_noticed_in_the_step_that_makes_it() {
    own_process!();
    #[derive(Module, Debug)]
    struct Model {
        first: Linear,
        second: Linear,
        dropout: Dropout,
    }
    let device = Device::flex().autodiff();
    let mut model = Model {
        first: LinearConfig::new(6, 6).init(&device),
        second: LinearConfig::new(6, 5).init(&device),
        dropout: DropoutConfig::new(0.0).init(),
    };
    let number = Cell::new(0);
    let loss = |model: &Model, input: Tensor<2>| {
        let mut x = model.first.forward(input.clone());
        if number.get() % 5 == 3 {
            x = x.tanh();
        }
        if number.get() == 6 {
            x = x.detach() + input;
        } else {
            x = x + input;
        }
        let x = model.dropout.forward(model.second.forward(x));
        let mut factor = 1.0;
        if number.get() > 8 {
            factor += 0.1 * f64::from(number.get() % 2);
        }
        x.square().mean() * factor
    };
    let input = Tensor::<2>::random([4, 6], Distribution::Default, &device);
    let step = rekindle::record(&model, &input, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    for place in 0..12 {
        number.set(place);
        model.dropout.prob = if place == 7 { 0.5 } else { 0.0 };
        let known = step.recordings();
        device.seed(3);
        let output = step.run(&model, input.clone()).expect("run");
        device.seed(3);
        let plain = GradientsParams::from_grads(loss(&model, input.clone()).backward(), &model);
        for layer in [&model.first, &model.second] {
            let bits = |gradients: &GradientsParams| {
                let has = gradients.get::<2>(layer.weight.id).is_some();
                has.then(|| weight_bits(gradients, layer))
            };
            assert_eq!(bits(&output.gradients), bits(&plain), "step {place}");
        }
        // Measuring a new recording is not part of its plan.
        let changed = step.recordings() != known;
        let peak = output.memory.peak_in_use_bytes;
        assert!(changed || peak <= output.predicted_peak + TABLES);
    }
    // Those before it are known: the plain one, with any factor, with `tanh`, cut off, and with dropout.
    assert_eq!(step.recordings().0, 4, "{:?}", step.recordings());
    assert!(step.plan().comparison_time.0 > 0.0);
}

/// After the first steps, most are compared up to their loss alone.
#[test]
fn a_change_after_many_equal_steps_is_noticed_at_once() {
    own_process!();
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(6, 6).init(&device);
    let input = Tensor::<2>::random([4, 6], Distribution::Default, &device);
    for change in [
        "number",
        "operation",
        "detach",
        "constant",
        "outputs",
        "draw",
    ] {
        let changed = Cell::new(false);
        let loss = |model: &Linear, input: Tensor<2>| {
            let is = |what| changed.get() && change == what;
            if is("draw") {
                // Nothing reads it, and all later draws are others.
                let _ = input.random_like(Distribution::Default);
            }
            let noise = input.random_like(Distribution::Default);
            let last = if is("constant") { 7.0 } else { 6.0 };
            let factors = [1.0, 2.0, 3.0, 4.0, 5.0, last];
            let factors = Tensor::<1>::from_floats(factors, &input.device());
            let mut x = model.forward(input + noise);
            if is("operation") {
                x = x.tanh();
            }
            let cut = if is("detach") {
                x.clone().detach()
            } else {
                x.clone()
            };
            let y = x.clone() * cut * factors.unsqueeze::<2>();
            let loss = y.clone().square().mean() * if is("number") { 2.0 } else { 1.0 };
            (loss, if is("outputs") { (y, x) } else { (x, y) })
        };
        let step = rekindle::record(&model, &input, loss)
            .expect("recorded")
            .plain()
            .expect("planned");
        for place in 0..8 {
            changed.set(place == 7);
            device.seed(3);
            let output = step.run(&model, input.clone()).expect("run");
            device.seed(3);
            let (plain, outputs) = loss(&model, input.clone());
            let plain = GradientsParams::from_grads(plain.backward(), &model);
            assert_eq!(
                weight_bits(&output.gradients, &model),
                weight_bits(&plain, &model),
                "{change}, step {place}"
            );
            let same = |a: &Tensor<2>, b: &Tensor<2>| a.to_data() == b.to_data();
            assert!(
                same(&output.auxiliary.0, &outputs.0),
                "{change}, step {place}"
            );
            let seen = u64::from(place == 7);
            assert_eq!(step.recordings().1, seen, "{change}, step {place}");
        }
    }
}

/// What differs beside the operations: the numbers of a constant, and which of two outputs is the first.
#[test]
fn a_change_of_numbers_or_outputs_alone_is_noticed() {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(6, 2).init(&device);
    let change = Cell::new("none");
    let loss = |model: &Linear, input: Tensor<2>| {
        let second = if change.get() == "numbers" { 2.0 } else { 3.0 };
        let factors = Tensor::<1>::from_floats([0.5, second], &input.device());
        let x = model.forward(input);
        let outputs = (x.clone().tanh(), x * factors.unsqueeze::<2>());
        let loss = (outputs.0.clone() + outputs.1.clone()).square().mean();
        let exchanged = change.get() == "outputs";
        let outputs = match exchanged {
            true => (outputs.1, outputs.0),
            false => outputs,
        };
        (loss, outputs)
    };
    let input = Tensor::<2>::random([4, 6], Distribution::Default, &device);
    let step = rekindle::record(&model, &input, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    let bits = |tensor: &Tensor<2>| -> Vec<u32> {
        let data = tensor.clone().into_data();
        data.iter::<f32>().map(f32::to_bits).collect()
    };
    let changes = ["none", "none", "numbers", "none", "outputs", "none"];
    for (place, (now, seen)) in changes.into_iter().zip([0, 0, 1, 2, 3, 3]).enumerate() {
        change.set(now);
        let output = step.run(&model, input.clone()).expect("run");
        assert_eq!(step.recordings().1, seen, "step {place}: {now}");
        let (loss, outputs) = loss(&model, input.clone());
        let plain = GradientsParams::from_grads(loss.backward(), &model);
        assert_eq!(
            weight_bits(&output.gradients, &model),
            weight_bits(&plain, &model),
            "step {place}"
        );
        let (first, second) = &output.auxiliary;
        assert_eq!(bits(first), bits(&outputs.0), "step {place}");
        assert_eq!(bits(second), bits(&outputs.1), "step {place}");
    }
}

/// Comparisons take memory, which budgets count.
#[test]
fn comparing_stays_within_the_budget() {
    own_process!();
    let device = Device::flex().autodiff();
    let layer = |_| LinearConfig::new(8, 8).init(&device);
    let model: Vec<Linear> = (0..200).map(layer).collect();
    drop(model.valid());
    let input = Tensor::<2>::random([2, 8], Distribution::Default, &device);
    let loss = |model: &Vec<Linear>, input: Tensor<2>| {
        let output = model.iter().fold(input, |x, layer| layer.forward(x).tanh());
        output.square().mean()
    };
    let recorded = || rekindle::record(&model, &input, loss).expect("recorded");
    let never = || recorded().with_comparison(Comparison::Never);
    let smallest = |refused: RecordError| match refused {
        RecordError::Infeasible { smallest, .. } => smallest,
        error => panic!("{error}"),
    };
    let needed = recorded()
        .within("1KiB")
        .err()
        .map(smallest)
        .expect("refused");
    let less = never().within("1KiB").err().map(smallest).expect("refused");
    assert!(less < needed, "{less} and {needed}");
    let step = recorded().within(needed).expect("named as workable");
    for _ in 0..5 {
        let output = step.run(&model, input.clone()).expect("run");
        let peak = output.memory.peak_in_use_bytes;
        assert!(
            peak <= needed && peak <= output.predicted_peak,
            "{peak} of {needed}"
        );
    }
}

#[test]
fn fewer_comparisons_miss_what_changes_between_them() {
    own_process!();
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(6, 5).init(&device);
    let weight = Cell::new(1.0);
    let loss =
        |model: &Linear, input: Tensor<2>| model.forward(input).square().mean() * weight.get();
    let input = Tensor::<2>::random([4, 6], Distribution::Default, &device);
    // Sampled steps are the first three, and so short a step is not compared again for many.
    for (how, in_second, in_third) in [
        (Comparison::EveryStep, 1, 2),
        (Comparison::Sampled, 1, 2),
        (Comparison::Never, 0, 0),
    ] {
        weight.set(1.0);
        let recorded = rekindle::record(&model, &input, loss).expect("recorded");
        let step = recorded.with_comparison(how).plain().expect("planned");
        let changed = |number: f64| {
            weight.set(number);
            step.run(&model, input.clone()).expect("run");
            step.recordings().1
        };
        changed(1.0);
        assert_eq!(changed(2.0), in_second, "{how:?}");
        // After a change, sampled steps are all compared, too.
        assert_eq!(changed(3.0), in_third, "{how:?}");
    }
    weight.set(1.0);
    let recorded = rekindle::record(&model, &input, loss).expect("recorded");
    let step = recorded
        .with_comparison(Comparison::Sampled)
        .plain()
        .expect("planned");
    for _ in 0..5 {
        step.run(&model, input.clone()).expect("run");
    }
    weight.set(2.0);
    step.run(&model, input.clone()).expect("run");
    assert_eq!(step.recordings(), (1, 0), "missed");
}

/// Deep enough that a budget recomputes something.
fn deep(
    device: &Device,
) -> (
    Vec<Linear>,
    impl Fn(&Vec<Linear>, Tensor<2>) -> Tensor<1> + Copy,
) {
    let layers = (0..8).map(|_| LinearConfig::new(128, 128).init(device));
    let loss = |layers: &Vec<Linear>, input: Tensor<2>| {
        let output = layers
            .iter()
            .fold(input, |x, layer| layer.forward(x).tanh());
        output.square().mean()
    };
    (layers.collect(), loss)
}

/// Each batch is smaller than the one before, and none needs a plan until those of the first would cost more.
#[test]
fn smaller_batches_take_the_plan_of_a_larger_one() {
    own_process!();
    let device = Device::flex().autodiff();
    let (model, loss) = deep(&device);
    let batch = |rows| Tensor::<2>::random([rows, 128], Distribution::Default, &device);
    let run = |step: &Step<_, _, _, _>, rows| {
        let input = batch(rows);
        let output = step.run(&model, input.clone()).expect("run");
        let plain = GradientsParams::from_grads(loss(&model, input).backward(), &model);
        for layer in &model {
            let (ours, plain) = (&output.gradients, &plain);
            assert_eq!(
                weight_bits(ours, layer),
                weight_bits(plain, layer),
                "{rows} rows"
            );
        }
        let budget = step.plan().budget.expect("a budget");
        let peak = output.memory.peak_in_use_bytes;
        assert!(
            peak <= output.predicted_peak && peak <= budget,
            "{peak} of {budget}, {rows} rows"
        );
    };
    let first = batch(1024);
    let began = Instant::now();
    let recorded = rekindle::record(&model, &first, loss).expect("recorded");
    let step = recorded.within("70%").expect("planned");
    run(&step, 1024);
    let took = began.elapsed().as_secs_f64();
    let program = step.graph().1;
    assert!(step.plan().repeated > 0);
    for rows in (0..12).map(|place| 1008 - 16 * place) {
        run(&step, rows);
        assert_eq!(step.graph().1.operations(), program.operations());
    }
    assert_eq!(step.recordings(), (13, 0));
    run(&step, 512);
    // A plan of its own, which recomputes less, once the larger one has lost the time that measuring and planning took.
    let mut lost = 0.0;
    while step.graph().1.operations() == program.operations() {
        assert!(lost <= took, "{lost} s lost, {took} s to measure and plan");
        let plan = step.plan();
        lost += plan.predicted_time.0 - plan.plain_time.0;
        step.run(&model, batch(512)).expect("run");
    }
    run(&step, 512);
    assert!(step.graph().1.operations().len() < program.operations().len());
    assert_eq!(step.recordings(), (14, 0));
}

/// A step that differs in one operation.
#[test]
fn what_is_known_is_not_measured_again() {
    own_process!();
    let device = Device::flex().autodiff();
    let (model, _) = deep(&device);
    let more = Cell::new(false);
    let loss = |layers: &Vec<Linear>, input: Tensor<2>| {
        let output = layers
            .iter()
            .fold(input, |x, layer| layer.forward(x).tanh());
        let output = if more.get() { output.exp() } else { output };
        output.square().mean()
    };
    let input = Tensor::<2>::random([64, 128], Distribution::Default, &device);
    let recorded = rekindle::record(&model, &input, loss).expect("recorded");
    let step = recorded.plain().expect("planned");
    let seconds = || -> Vec<Seconds> {
        let operations = step.graph().0.operations;
        operations.iter().map(|one| one.seconds).collect()
    };
    let before = seconds();
    more.set(true);
    step.run(&model, input).expect("run");
    let after = seconds();
    // `exp` is new, and its gradient.
    assert!(after.len() > before.len());
    let forward = 2 * model.len();
    assert_eq!(before[..forward], after[..forward]);
}
