//! What recording takes for granted of burn, one test each. `docs/upstream.md` explains them by the same names. That
//! random numbers are drawn once and in order is tested in `record_parity`: tests here share one generator.

use burn::{
    module::{Module, Param},
    nn::{
        BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, Linear,
        LinearConfig,
    },
    optim::{AdamConfig, GradientsParams},
    tensor::{Device, Distribution, Int, Tensor, TensorData},
};
use rekindle::record::RecordError;

fn device() -> Device {
    Device::flex().autodiff()
}

fn data<const D: usize>(tensor: &Tensor<D>) -> TensorData {
    tensor.clone().without_autodiff().into_data()
}

fn mean(model: &BatchNorm) -> TensorData {
    model.running_mean.value_sync().into_data()
}

/// Autodiff on the recording device records burn's own backward: leaves have gradients, with the plain loop's bits.
#[test]
fn gradients_of_leaves_are_recorded() {
    let model = LinearConfig::new(3, 2).init(&device());
    let input = Tensor::<2>::random([4, 3], Distribution::Default, &device());
    let loss = |model: &Linear, input: Tensor<2>| model.forward(input).square().mean();
    let step = rekindle::record(&model, &input, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    let ours = step.run(&model, input.clone()).expect("run").gradients;
    let plain = GradientsParams::from_grads(loss(&model, input).backward(), &model);
    let weight =
        |gradients: &GradientsParams| gradients.get::<2>(model.weight.id).map(|one| data(&one));
    assert!(weight(&ours).is_some());
    assert_eq!(weight(&ours), weight(&plain));
}

/// Two recordings of one step are equal, whatever ran between them.
#[test]
fn recordings_are_the_same_every_time() {
    let device = device();
    let mut model = LinearConfig::new(3, 2).init(&device);
    let batch = || Tensor::<2>::random([4, 3], Distribution::Default, &device);
    let loss = |model: &Linear, input: Tensor<2>| {
        let rows = Tensor::<1>::from_floats([0.5, 2.0], &input.device()).unsqueeze::<2>();
        (model.forward(input) * rows).square().mean()
    };
    let mut optimizer = AdamConfig::new().init();
    let step = rekindle::record(&model, &batch(), loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    for _ in 0..6 {
        let gradients = step.run(&model, batch()).expect("run").gradients;
        model = optimizer.step(1e-2, model, gradients);
    }
    assert_eq!(step.recordings(), (1, 0));
}

/// Running statistics are found by comparing the module after the step with the module before, and move once.
#[test]
fn running_statistics_move_once() {
    let model = BatchNormConfig::new(3).init(&device());
    let input = Tensor::<2>::random([8, 3], Distribution::Normal(2.0, 1.0), &device());
    let loss = |model: &BatchNorm, input: Tensor<2>| model.forward(input).square().mean();
    let before = mean(&model);
    let recorded = rekindle::record(&model, &input, loss).expect("recorded");
    let step = recorded.plain().expect("planned");
    assert_eq!(mean(&model), before, "recording and measuring move nothing");
    let reference = model.valid().train();
    let _ = loss(&reference, input.clone());
    step.run(&model, input).expect("run");
    assert_eq!(mean(&model), mean(&reference));
}

/// Constants made of numbers on the device of the batch are kept with the recording.
#[test]
fn constants_on_the_device_of_the_batch_are_kept() {
    let model = LinearConfig::new(3, 2).init(&device());
    let input = Tensor::<2>::ones([4, 3], &device());
    let loss = |model: &Linear, input: Tensor<2>| {
        let weights = Tensor::<2>::from_data([[3.0, -1.0]], &input.device());
        (model.forward(input) * weights).sum()
    };
    let step = rekindle::record(&model, &input, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    for _ in 0..2 {
        let ours = step.run(&model, input.clone()).expect("run").loss;
        assert_eq!(data(&ours), data(&loss(&model, input.clone())));
    }
}

/// Integer tensors have no autodiff, and pass in and out of a recording.
#[test]
fn integer_tensors_pass_in_and_out() {
    let model = EmbeddingConfig::new(7, 2).init(&device());
    let tokens = Tensor::<2, Int>::from_data([[0, 6], [3, 3]], &device());
    let loss = |model: &Embedding, tokens: Tensor<2, Int>| {
        let shifted = tokens.clone() + 1;
        (model.forward(tokens).square().mean(), shifted)
    };
    let step = rekindle::record(&model, &tokens, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    let output = step.run(&model, tokens.clone()).expect("run");
    assert_eq!(data(&output.loss), data(&loss(&model, tokens.clone()).0));
    assert_eq!(
        output.auxiliary.into_data(),
        (tokens + 1).without_autodiff().into_data()
    );
}

/// Two parameters of one id are one tensor, with one gradient.
#[test]
fn parameters_of_one_id_are_one_tensor() {
    let device = device();
    let first = LinearConfig::new(3, 3).with_bias(false).init(&device);
    let model = vec![first.clone(), first];
    let input = Tensor::<2>::random([4, 3], Distribution::Default, &device);
    let loss = |model: &Vec<Linear>, input: Tensor<2>| {
        model
            .iter()
            .fold(input, |x, one| one.forward(x).tanh())
            .square()
            .mean()
    };
    let step = rekindle::record(&model, &input, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    let ours = step.run(&model, input.clone()).expect("run").gradients;
    assert_eq!(ours.len(), 1);
    let plain = GradientsParams::from_grads(loss(&model, input).backward(), &model);
    let id = model[0].weight.id;
    let weight = |gradients: &GradientsParams| gradients.get::<2>(id).map(|one| data(&one));
    assert_eq!(weight(&ours), weight(&plain));
}

/// A frozen parameter has no gradient, and is read anew in every step.
#[test]
fn frozen_parameters_are_given_with_the_model() {
    let device = device();
    let model = (
        LinearConfig::new(3, 3).init(&device).no_grad(),
        LinearConfig::new(3, 2).init(&device),
    );
    let input = Tensor::<2>::ones([4, 3], &device);
    let loss = |(frozen, trained): &(Linear, Linear), input: Tensor<2>| {
        trained.forward(frozen.forward(input)).square().mean()
    };
    let step = rekindle::record(&model, &input, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    let output = step.run(&model, input.clone()).expect("run");
    assert!(output.gradients.get::<2>(model.0.weight.id).is_none());
    assert!(output.gradients.get::<2>(model.1.weight.id).is_some());
    let mut other = model;
    other.0.weight = other.0.weight.map(|weight| weight * 2.0);
    let ours = step.run(&other, input.clone()).expect("run").loss;
    assert_eq!(data(&ours), data(&loss(&other, input)));
}

/// The second use of a batch norm moves statistics with autodiff to a device, which burn does not do on the recording
/// device: `reused` says that they are used again. Then they move twice, in order.
#[test]
fn a_batch_norm_used_twice_moves_its_statistics_twice() {
    own_process!();
    let model = BatchNormConfig::new(3).init(&device());
    let input = Tensor::<2>::random([8, 3], Distribution::Normal(2.0, 1.0), &device());
    let twice =
        |model: &BatchNorm, input: Tensor<2>| model.forward(model.forward(input)).square().mean();
    let before = mean(&model);
    let error = match rekindle::record(&model, &input, twice) {
        Ok(_) => panic!("recorded: `docs/upstream.md` says otherwise"),
        Err(error) => error,
    };
    assert!(error.to_string().contains("rekindle::reused"), "{error}");
    assert_eq!(mean(&model), before);

    let twice = |model: &BatchNorm, input: Tensor<2>| {
        let once = model.forward(input);
        rekindle::reused(model).forward(once).square().mean()
    };
    let plain_model = model.valid().train();
    let step = rekindle::record(&model, &input, twice)
        .expect("recorded")
        .plain()
        .expect("planned");
    assert_eq!(mean(&model), before, "recording and measuring move nothing");
    for _ in 0..3 {
        let ours = step.run(&model, input.clone()).expect("run");
        let plain = twice(&plain_model, input.clone());
        assert_eq!(data(&ours.loss), data(&plain));
        assert_eq!(mean(&model), mean(&plain_model));
        let gradients = GradientsParams::from_grads(plain.backward(), &plain_model);
        let gamma = |gradients: &GradientsParams| gradients.get::<1>(model.gamma.id);
        assert_eq!(
            gamma(&ours.gradients).map(|one| data(&one)),
            gamma(&gradients).map(|one| data(&one))
        );
    }
    assert_eq!(step.recordings(), (1, 0));
}

/// burn's clones of a batch norm share their statistics; a recording would move them apart.
#[test]
fn batch_norms_that_share_their_statistics_are_refused() {
    let student = BatchNormConfig::new(3).init(&device());
    drop(student.valid());
    let input = Tensor::<2>::random([8, 3], Distribution::Normal(2.0, 1.0), &device());
    let both = |norms: &Vec<BatchNorm>, input: Tensor<2>| {
        let outputs = norms.iter().map(|norm| norm.forward(input.clone()));
        let apart = outputs.reduce(|one, other| one * 2.0 - other);
        apart.expect("norms").square().mean()
    };
    let before = mean(&student);
    let shared = vec![student.clone(), student.clone().no_grad()];
    let refused = rekindle::record(&shared, &input, both).err();
    let shares = |refused: Option<RecordError>| {
        let said = refused.expect("refused").to_string();
        let words = "share the running statistics `1.running_mean`";
        assert!(said.contains(words), "{said}");
    };
    shares(refused);
    assert_eq!(mean(&student), before, "what is tried is taken back");
    let apart = vec![
        student.clone(),
        student.valid().train(),
        student.valid().train(),
    ];
    let step = rekindle::record(&apart, &input, both).expect("recorded");
    let step = step.plain().expect("planned");
    step.run(&apart, input.clone()).expect("run");
    // Shared from here on, without another id or shape.
    let later = vec![apart[0].clone(), apart[0].clone(), apart[2].clone()];
    let refused = step.run(&later, input).err();
    shares(refused);
}

/// `train` switches on what `valid` switched off: a recorded step leaves both as they are.
#[test]
fn a_copy_from_valid_is_not_trained() {
    own_process!();
    #[derive(Module, Debug)]
    struct Network {
        norm: BatchNorm,
        dropout: Dropout,
    }
    impl Network {
        fn forward(&self, x: Tensor<2>) -> Tensor<2> {
            self.dropout.forward(self.norm.forward(x))
        }
    }
    let student = Network {
        norm: BatchNormConfig::new(3).init(&device()),
        dropout: DropoutConfig::new(0.5).init(),
    };
    drop(student.valid());
    let input = Tensor::<2>::random([8, 3], Distribution::Normal(2.0, 1.0), &device());
    let loss = |pair: &Vec<Network>, input: Tensor<2>| {
        (pair[0].forward(input.clone()) - pair[1].forward(input))
            .square()
            .mean()
    };
    let pair = || vec![student.valid().train(), student.valid()];
    let (ours, plain) = (pair(), pair());
    let step = rekindle::record(&ours, &input, loss).expect("recorded");
    let step = step.plain().expect("planned");
    for _ in 0..3 {
        device().seed(5);
        let expected = loss(&plain, input.clone());
        device().seed(5);
        let output = step.run(&ours, input.clone()).expect("run");
        assert_eq!(data(&output.loss), data(&expected));
        for (ours, plain) in ours.iter().zip(&plain) {
            assert_eq!(mean(&ours.norm), mean(&plain.norm));
        }
    }
}

/// A parameter of rank 3, of a module of one's own.
#[test]
fn parameters_of_a_module_of_ones_own() {
    #[derive(Module, Debug)]
    struct Scale {
        scale: Param<Tensor<3>>,
    }
    let model = Scale {
        scale: Param::from_tensor(Tensor::ones([1, 2, 3], &device())),
    };
    let input = Tensor::<3>::random([4, 2, 3], Distribution::Default, &device());
    let loss = |model: &Scale, input: Tensor<3>| (input * model.scale.val()).square().mean();
    let step = rekindle::record(&model, &input, loss)
        .expect("recorded")
        .plain()
        .expect("planned");
    let ours = step.run(&model, input.clone()).expect("run").gradients;
    let plain = GradientsParams::from_grads(loss(&model, input).backward(), &model);
    let scale =
        |gradients: &GradientsParams| gradients.get::<3>(model.scale.id).map(|one| data(&one));
    assert_eq!(scale(&ours), scale(&plain));
}
