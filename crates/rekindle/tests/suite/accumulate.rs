//! Parts of a batch give the loss and the gradients of the whole, in `f32`, within the budget of one part and the sum.

use burn::{
    module::{Module, Param},
    nn::{Dropout, DropoutConfig, Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig},
    tensor::{Device, Distribution, FloatDType, Tensor},
};
use rekindle::{
    Dtype, MasterWeights,
    accumulate::Sum,
    record::{Output, RecordError},
};
use rekindle_plan::Bytes;

use crate::compare::{Trace, assert_same, floats, gradients_of};

const WIDTH: usize = 8;
const ROWS: usize = 16;

#[derive(Module, Debug)]
struct Network {
    layers: Vec<Linear>,
    dropout: Dropout,
}

impl Network {
    fn new((depth, width, dropout): (usize, usize, f64), device: &Device) -> Self {
        let layer = |_| LinearConfig::new(width, width).init(device);
        Self {
            layers: (0..depth).map(layer).collect(),
            dropout: DropoutConfig::new(dropout).init(),
        }
    }

    fn forward(&self, input: Tensor<2>, activation: fn(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
        let layer = |x, layer: &Linear| activation(self.dropout.forward(layer.forward(x)));
        self.layers.iter().fold(input, layer)
    }
}

fn smooth(model: &Network, input: Tensor<2>) -> Tensor<1> {
    let output = model.forward(input, Tensor::tanh);
    output.cast(FloatDType::F32).square().mean()
}

/// Whose values and gradients are sums of integers, if the input is and the weights are.
fn of_integers(model: &Network, input: Tensor<2>) -> Tensor<1> {
    let relu = burn::tensor::activation::relu;
    (model.forward(input.clone(), relu) - input).square().mean()
}

/// Small integers: sums of their products are exact in `f32`, and so are quotients by powers of two.
fn integers<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Uniform(-2.0, 3.0), device).floor()
}

fn integer_network(device: &Device) -> Network {
    let mut model = Network::new((2, WIDTH, 0.0), device);
    for layer in &mut model.layers {
        layer.weight = Param::from_tensor(integers([WIDTH, WIDTH], device));
        layer.bias = Some(Param::from_tensor(integers([WIDTH], device)));
    }
    model
}

/// Parts of these numbers of rows.
fn cut(batch: &Tensor<2>, rows: &[usize]) -> Vec<Tensor<2>> {
    let starts = rows.iter().scan(0, |end, rows| {
        *end += rows;
        Some(*end - rows)
    });
    let part = |(start, rows): (usize, &usize)| batch.clone().narrow(0, start, *rows);
    starts.zip(rows).map(part).collect()
}

/// Loss and gradients by burn alone.
fn plain(model: &Network, batch: Tensor<2>, loss: fn(&Network, Tensor<2>) -> Tensor<1>) -> Trace {
    let loss = loss(model, batch);
    let gradients = GradientsParams::from_grads(loss.clone().backward(), model);
    read(model, loss, &gradients)
}

fn read(model: &Network, loss: Tensor<1>, gradients: &GradientsParams) -> Trace {
    let mut trace = vec![("loss".to_owned(), floats(loss))];
    trace.extend(gradients_of(0, model, gradients));
    trace
}

fn read_output<A>(model: &Network, output: Output<A>) -> Trace {
    read(model, output.loss, &output.gradients)
}

/// The mean of some traces, added in their order.
fn mean(traces: &[Trace]) -> Trace {
    let share = (1.0 / traces.len() as f64) as f32;
    let mut sum = traces[0].clone();
    for trace in &traces[1..] {
        for ((_, sum), (_, part)) in sum.iter_mut().zip(trace) {
            sum.iter_mut()
                .zip(part)
                .for_each(|(sum, part)| *sum += part);
        }
    }
    let values = sum.iter_mut().flat_map(|(_, values)| values);
    values.for_each(|value| *value *= share);
    sum
}

/// The whole batch's numbers, exactly; and unequal parts by their weights.
#[test]
fn parts_are_the_whole_batch() {
    let device = Device::flex().autodiff();
    device.seed(3);
    let model = integer_network(&device);
    let batch = integers([ROWS, WIDTH], &device);
    let whole = plain(&model, batch.clone(), of_integers);
    assert!(
        whole
            .iter()
            .all(|(_, values)| values.iter().any(|value| *value != 0.0))
    );
    for parts in [1, 2, 4, ROWS] {
        let parts = cut(&batch, &vec![ROWS / parts; parts]);
        let recorded = rekindle::record(&model, &parts[0], of_integers).expect("recorded");
        let step = recorded.with_parts(parts.len()).plain().expect("planned");
        let output = step.run_parts(&model, parts.clone()).expect("runs");
        assert_eq!(output.auxiliary.len(), parts.len());
        let what = format!("{} parts", parts.len());
        assert_same(&what, &whole, &read_output(&model, output), 0.0);
    }
    let parts = cut(&batch, &[4, 8, 4]);
    let recorded = rekindle::record(&model, &parts[0], of_integers).expect("recorded");
    let step = recorded.with_parts(3).plain().expect("planned");
    let mut sum = Sum::default();
    for part in parts {
        let rows = part.dims()[0] as f64;
        sum.add(&model, step.run(&model, part).expect("runs"), rows);
    }
    let output = sum.mean(&model).expect("parts");
    assert_same("unequal parts", &whole, &read_output(&model, output), 0.0);
}

/// Bit for bit the mean of burn's own numbers of each part in `f32`, random numbers included, under each plan, every time. The
/// gradients of half types are added in `f32`.
#[test]
fn parts_are_added_in_their_order() {
    own_process!();
    let device = Device::flex().autodiff();
    for dtype in Dtype::ALL {
        device.seed(4);
        let model = dtype.cast(Network::new((4, WIDTH, 0.2), &device));
        drop(model.valid());
        let normal = Distribution::Normal(0.0, 1.0);
        let batch = Tensor::<2>::random([ROWS * 3, WIDTH], normal, &device).cast(dtype.float());
        let parts = cut(&batch, &[ROWS; 3]);
        device.seed(5);
        let each = parts.iter().map(|part| plain(&model, part.clone(), smooth));
        let expected = mean(&each.collect::<Vec<_>>());
        for share in ["100%", "60%"] {
            let recorded = rekindle::record(&model, &parts[0], smooth).expect("recorded");
            let recorded = recorded.with_parts(3);
            let step = match recorded.within(share) {
                Err(RecordError::Infeasible { smallest, .. }) => {
                    let recorded = rekindle::record(&model, &parts[0], smooth).expect("recorded");
                    recorded.with_parts(3).within(smallest)
                }
                step => step,
            };
            let step = step.expect("planned");
            for _ in 0..2 {
                device.seed(5);
                let output = step.run_parts(&model, parts.clone()).expect("runs");
                let weight = &model.layers[0].weight;
                let sum = output.gradients.get::<2>(weight.id).expect("a gradient");
                assert_eq!(sum.dtype(), FloatDType::F32.into());
                let what = format!("{dtype}, within {share}");
                assert_same(&what, &expected, &read_output(&model, output), 0.0);
            }
        }
    }
}

/// What plans, tables and headers differ by from one recording to the next.
const LEEWAY: u64 = 64 << 10;

/// Within the smallest budget, with the update and without, where activations outweigh weights and where they do not.
#[test]
fn the_sum_is_within_the_budget() {
    own_process!();
    const PARTS: usize = 3;
    const WIDE: usize = 256;
    let device = Device::flex().autodiff();
    for (dtype, rows, updates) in [
        (Dtype::F32, 1024, true),
        (Dtype::Bf16, 1024, true),
        (Dtype::F32, 8, true),
        // The peak is where the last part is added.
        (Dtype::Bf16, 8, false),
    ] {
        let mut model = dtype.cast(Network::new((8, WIDE, 0.0), &device));
        drop(model.valid());
        let adam = || ModuleOptimizer::from(MasterWeights::new(AdamConfig::new().build()));
        let part = || Tensor::<2>::ones([rows, WIDE], &device).cast(dtype.float());
        let within = |model: &Network, parts, budget: Bytes| {
            let first = part();
            let recorded = rekindle::record(model, &first, smooth).expect("recorded");
            let recorded = match updates {
                true => recorded.with_optimizer(&adam()),
                false => recorded,
            };
            recorded.with_parts(parts).within(budget)
        };
        let smallest = |parts| match within(&model, parts, Bytes(1)) {
            Err(RecordError::Infeasible { smallest, .. }) => smallest,
            other => panic!("{:?}", other.err()),
        };
        // The first plan of a process finds less in use than those after it.
        smallest(1);
        let (one, budget) = (smallest(1), smallest(PARTS));
        // Budgets leave a margin of 3%.
        let sum = 4 * model.num_params() as u64;
        let more = (budget - one).0;
        assert!(
            more + LEEWAY >= sum && more <= sum + sum / 20 + LEEWAY,
            "{more} for {sum}"
        );

        let step = within(&model, PARTS, budget).expect("named as workable");
        let mut own = adam();
        let mut peak = Bytes::ZERO;
        for _ in 0..3 {
            let parts = std::iter::repeat_with(part).take(PARTS);
            let output = step.run_parts(&model, parts).expect("runs");
            peak = peak.max(output.memory.peak_in_use_bytes);
            if updates {
                model = own.step(1e-3, model, output.gradients);
            }
            // Since the end of the last part.
            peak = peak.max(Bytes(rekindle_alloc::peak() as u64));
        }
        eprintln!(
            "{dtype}, {rows} rows: {peak} of {budget}, {one} without the sum of {sum}; {}",
            step.plan()
        );
        assert!(peak <= budget, "{dtype}, {rows} rows: {peak} of {budget}");
        assert_eq!(step.plan().repeated > 0, rows > 8);
    }
}

#[test]
fn what_cannot_be_added_is_refused() {
    let device = Device::flex().autodiff();
    let mut model = Network::new((2, WIDTH, 0.0), &device);
    let part = |rows| Tensor::<2>::ones([rows, WIDTH], &device);
    let first = part(4);
    let recorded = || rekindle::record(&model, &first, smooth).expect("recorded");
    let step = recorded().with_parts(2).plain().expect("planned");
    let refused = |rows: &[usize]| match step.run_parts(&model, rows.iter().map(|rows| part(*rows)))
    {
        Err(RecordError::Parts(why)) => why,
        other => panic!("{:?}", other.err()),
    };
    let why = refused(&[]);
    assert!(why.contains("no part"), "{why}");
    let why = refused(&[4, 4, 4]);
    assert!(why.contains("more parts than the 2 "), "{why}");
    let why = refused(&[4, 3]);
    assert!(
        why.contains("part 2") && why.contains("[[3, 8]]") && why.contains("[[4, 8]]"),
        "{why}"
    );
    // Fewer parts are fine, and so are smaller ones.
    for rows in [&[4, 4][..], &[4], &[3, 3]] {
        let parts = rows.iter().map(|rows| part(*rows));
        step.run_parts(&model, parts).expect("runs");
    }
    let alone = recorded().plain().expect("planned");
    assert!(alone.run_parts(&model, [part(4)]).is_ok());
    let planned = alone.run_parts(&model, [part(4), part(4)]).err();
    assert!(
        matches!(planned, Some(RecordError::Parts(_))),
        "{planned:?}"
    );

    let mut own = SgdConfig::new().init();
    let updating = recorded().with_parts(2).with_update_in_backward(&own);
    let updating = updating.plain().expect("planned");
    let refused = updating.run_parts(&model, [part(4), part(4)]).err();
    assert!(
        matches!(refused, Some(RecordError::OtherUpdate { .. })),
        "{refused:?}"
    );
    updating
        .run_updating(&mut model, part(4), 0.1, &mut own)
        .expect("runs");
}
