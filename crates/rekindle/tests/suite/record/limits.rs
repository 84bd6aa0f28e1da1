//! What cannot be recorded is an error that says what to change.

use burn::{
    module::Module,
    nn::{
        Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Int, Tensor},
};
use rekindle::{
    meter::{HostMeter, Meter},
    record::{Comparison, RecordError},
};
use rekindle_plan::Bytes;

/// The error of recording `step` on a linear layer.
fn refused(step: impl Fn(&Linear, Tensor<2>) -> Tensor<1>) -> RecordError {
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(3, 3).init(&device);
    let input = Tensor::<2>::ones([2, 3], &device);
    match rekindle::record(&model, &input, step) {
        Ok(_) => panic!("recorded"),
        Err(error) => error,
    }
}

fn assert_says(error: &RecordError, words: &str) {
    assert!(matches!(error, RecordError::Unrecordable(_)), "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

/// Of a step that reads a value.
const READS: &str = "the step reads the value of a tensor";
/// Of one that uses a tensor from outside.
const OUTSIDE: &str = "the step uses a tensor from outside";

#[test]
fn reading_a_value() {
    own_process!();
    let error = refused(|model, input| {
        let output = model.forward(input);
        if output.clone().sum().into_scalar::<f32>() > 0.0 {
            output.mean()
        } else {
            output.sum()
        }
    });
    assert_says(&error, READS);
    assert_says(&error, "after operation Sum of shape [1]");
}

/// Of which plain burn takes the first branch: while recording, burn returns an error, and the step would go on with the
/// other.
#[test]
fn reading_a_value_with_another_way_out() {
    own_process!();
    let after_mean = |error: RecordError| {
        assert_says(&error, READS);
        assert_says(&error, "after operation Mean");
    };
    after_mean(refused(|model, input| {
        let loss = model.forward(input).mean();
        match loss.clone().try_into_scalar::<f32>() {
            Ok(value) if value > 0.01 => loss * 2.0,
            _ => loss,
        }
    }));
    // Nobody looks at the data.
    after_mean(refused(|model, input| {
        let loss = model.forward(input).mean();
        match loss.clone().try_into_data() {
            Ok(_) => loss * 2.0,
            Err(_) => loss,
        }
    }));
    let error = refused(|model, input| {
        let first = input
            .clone()
            .try_into_data()
            .map(|data| data.as_slice::<f32>().map(|one| one[0]));
        let factor = first.ok().and_then(Result::ok).unwrap_or(1.0);
        (model.forward(input) * factor).mean()
    });
    assert!(
        error.to_string().contains("before its first operation"),
        "{error}"
    );
    let error = refused(|model, input| {
        let best = model.forward(input.clone()).argmax(1).reshape([2]);
        let rows = best
            .clone()
            .try_into_data()
            .ok()
            .and_then(|data| data.try_into_vec::<i64>().ok());
        model.forward(input).mean() * rows.map_or(1.0, |rows| rows[0] as f64)
    });
    assert_says(&error, READS);
}

/// burn's reads outside recordings do not hide those within later ones.
#[test]
fn reading_a_value_after_others_have_been_read() {
    own_process!();
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(3, 3).init(&device);
    let input = Tensor::<2>::ones([2, 3], &device);
    let mean = |model: &Linear, input: Tensor<2>| model.forward(input).mean();
    let recorded = rekindle::record(&model, &input, mean).expect("recorded");
    let step = recorded.plain().expect("planned");
    let loss = step.run(&model, input).expect("run").loss;
    assert!(loss.into_scalar::<f32>().is_finite());
    let error = refused(|model, input| {
        let loss = model.forward(input).mean();
        let small = loss
            .clone()
            .try_into_scalar::<f32>()
            .is_ok_and(|loss| loss < 0.01);
        if small { loss * 2.0 } else { loss }
    });
    assert_says(&error, READS);
}

#[test]
fn calling_backward() {
    own_process!();
    let error = refused(|model, input| {
        let loss = model.forward(input).mean();
        drop(loss.backward());
        loss
    });
    assert_says(&error, "the step calls `backward`");
}

/// By `one_hot`, which looks for the largest class if it is not told.
#[test]
fn operations_that_read_values_are_named() {
    own_process!();
    let error = refused(|model, input| {
        let classes: Tensor<1, Int> = model.forward(input.clone()).argmax(1).reshape([2]);
        (model.forward(input) * classes.one_hot::<2>(3).float()).mean()
    });
    assert_says(&error, READS);
    assert!(error.to_string().contains("`one_hot`"), "{error}");
}

#[test]
fn a_tensor_from_outside() {
    own_process!();
    let device = Device::flex().autodiff();
    let outside = Tensor::<2>::ones([2, 3], &device);
    let error = refused(|model, input| (model.forward(input) * outside.clone()).mean());
    assert_says(&error, OUTSIDE);
    let plain = outside.inner();
    let error = refused(|model, input| (model.forward(input) * plain.clone()).mean());
    assert_says(&error, OUTSIDE);
}

#[test]
fn taking_a_tensor_out_of_autodiff_and_seeding() {
    own_process!();
    let error = refused(|model, input| {
        let output = model.forward(input);
        (output.clone() * output.inner()).mean()
    });
    assert_says(&error, "the step moves a tensor");
    let error = refused(|model, input| {
        input.device().seed(3);
        model.forward(input).mean()
    });
    assert_says(&error, "the step seeds the random number generator");
}

#[test]
fn a_panic_of_the_users_own_keeps_its_message() {
    own_process!();
    // Two that have words of burn's own panics.
    for text in [
        "no such head",
        "Expected 3 heads",
        "shape mismatch of my own",
    ] {
        let error = refused(|_, _| panic!("{text}"));
        assert!(error.to_string().contains(text), "{error}");
        assert!(
            error.to_string().contains("before its first operation"),
            "{error}"
        );
    }
}

#[test]
fn a_step_inside_a_step() {
    own_process!();
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(3, 3).init(&device);
    let input = Tensor::<2>::ones([2, 3], &device);
    let mean = |model: &Linear, input: Tensor<2>| model.forward(input).mean();
    let outer = rekindle::record(&model, &input, |model: &Linear, input: Tensor<2>| {
        let inner = rekindle::record(model, &input, mean);
        let error = inner.err().expect("refused");
        assert_says(&error, "while another is being recorded");
        mean(model, input)
    });
    assert!(outer.is_ok());
}

#[test]
fn what_looks_alike_and_can_be_recorded() {
    own_process!();
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(3, 3).init(&device);
    let input = Tensor::<2>::ones([2, 3], &device);
    let step = |model: &Linear, input: Tensor<2>| {
        let device = input.device();
        let constant = Tensor::<1>::from_floats([1.0, 2.0, 3.0], &device);
        let constant = constant.unsqueeze::<2>();
        let output = model.forward(input.clone());
        let best: Tensor<2, Int> = output.clone().argmax(1);
        let mask = output.clone().greater_elem(0.1);
        let output = output.clone().mask_where(mask, output.clone() * constant) + best.float();
        (output.clone() * output.detach()).mean() + model.clone().no_grad().forward(input).mean()
    };
    let planned = rekindle::record(&model, &input, step)
        .expect("recorded")
        .plain()
        .expect("planned");
    let loss = planned
        .run(&model, input.clone())
        .expect("run")
        .loss
        .into_data();
    assert_eq!(loss, step(&model, input).inner().into_data());
}

#[test]
fn sizes_and_budgets() {
    own_process!();
    let device = Device::flex().autodiff();
    let model = LinearConfig::new(3, 3).init(&device);
    let input = Tensor::<2>::ones([2, 3], &device);
    let recorded = || {
        let step = |model: &Linear, input: Tensor<2>| model.forward(input).mean();
        rekindle::record(&model, &input, step).expect("recorded")
    };
    for text in ["512", "2 gigs", "", "-1MiB", "0%", "-5%", "120%"] {
        let error = recorded().within(text).err();
        assert!(
            matches!(error, Some(RecordError::Size { .. })),
            "{text}: {error:?}"
        );
    }
    assert!(matches!(
        recorded().within("1KiB").err(),
        Some(RecordError::Infeasible { .. })
    ));
    assert!(recorded().within("1GiB".to_owned()).is_ok());
    assert!(recorded().within(1 << 30).is_ok());
    // One linear layer is one segment; more than there are stages is an error of its own.
    assert!(recorded().segments(1).is_ok());
}

/// Room for the planner, which runs in this process: less than one convolution takes.
const PLANNER: Bytes = Bytes(4 << 20);

/// Kernels of convolutions take several times the bytes of their tensors.
#[test]
fn measuring_stays_within_the_budget_and_a_refusal_names_one_that_works() {
    own_process!();
    let device = Device::flex().autodiff();
    let meter = HostMeter::new().expect("a counting allocator");
    let layer = |_| {
        let layer = Conv2dConfig::new([64, 64], [3, 3]).with_padding(PaddingConfig2d::Same);
        layer.init(&device)
    };
    let model: Vec<Conv2d> = (0..4).map(layer).collect();
    // Parameters are made at their first use.
    drop(model.valid());
    let images = Tensor::<4>::ones([2, 64, 32, 32], &device);
    let loss = |model: &Vec<Conv2d>, images| {
        let output = model
            .iter()
            .fold(images, |x, layer| layer.forward(x).tanh());
        output.square().mean()
    };
    // The smallest budget, if this one is refused.
    let within = |budget: Bytes| {
        let recorded = rekindle::record(&model, &images, loss).expect("recorded");
        meter.start_interval();
        let planned = recorded.within(budget);
        let peak = meter.read().peak_in_use_bytes;
        assert!(peak <= budget, "measuring takes {peak} of {budget}");
        match planned {
            Ok(step) => {
                let output = step.run(&model, images.clone()).expect("run");
                assert!(output.memory.peak_in_use_bytes <= budget);
                None
            }
            Err(RecordError::Infeasible { smallest, .. }) => Some(smallest),
            Err(error) => panic!("{error}"),
        }
    };
    let base = meter.read().in_use_bytes;
    let smallest = within(base + PLANNER).expect("refused");
    for share in [0.5, 0.8, 0.95, 1.0] {
        let budget = base + Bytes(((smallest - base).0 as f64 * share) as u64);
        let refused = within(budget);
        eprintln!("{budget} of {smallest}, with {base} in use: refused for {refused:?}");
        assert!(share < 1.0 || refused.is_none());
        if let Some(named) = refused {
            assert!(named > budget);
            assert_eq!(within(named), None);
        }
    }
}

/// Operations whose tensors are smaller than what a plan of them takes.
#[test]
fn a_refused_budget_names_one_that_works_and_what_needs_it() {
    own_process!();
    let device = Device::flex().autodiff();
    let layer = |_| LinearConfig::new(10, 10).init(&device);
    let model: Vec<Linear> = (0..100).map(layer).collect();
    drop(model.valid());
    let loss = |model: &Vec<Linear>, input: Tensor<2>| {
        let output = model.iter().fold(input, |x, layer| layer.forward(x));
        output.square().mean()
    };
    for rows in [1, 512] {
        let input = Tensor::<2>::ones([rows, 10], &device);
        let recorded = || {
            let recorded = rekindle::record(&model, &input, loss).expect("recorded");
            recorded.with_comparison(Comparison::Never)
        };
        let plain = recorded().plain().expect("planned").plan().plain_peak;
        let mut named = Vec::new();
        for asked in [Bytes(1), Bytes(plain.0 / 4)] {
            let error = match recorded().within(asked) {
                Err(error @ RecordError::Infeasible { .. }) => error,
                Err(error) => panic!("{error}"),
                Ok(step) => panic!("{}", step.plan()),
            };
            if let RecordError::Infeasible {
                smallest, floor, ..
            } = &error
            {
                assert!(
                    error.to_string().contains("It is held while it makes"),
                    "{error}"
                );
                assert!(floor.is_some() && *smallest > asked);
                named.push(*smallest);
            }
        }
        for smallest in named {
            let step = recorded().within(smallest).expect("named as workable");
            let output = step.run(&model, input.clone()).expect("run");
            let peak = output.memory.peak_in_use_bytes;
            assert!(peak <= smallest, "{peak} of {smallest}");
            println!("{rows}: {smallest} of {plain}, {peak}");
        }
    }
}
