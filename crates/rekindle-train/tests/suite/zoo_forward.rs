//! What each layer kind computes, against loops written out by hand and values from closed formulas.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::VecDeque;

use approx::assert_relative_eq;
use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Device, Tensor, TensorData},
};
use rekindle::{Dtype, record::driver::catch, sequential::Sequential};
use rekindle_train::model::{
    spec::{LayerSpec, ModelSpec, Padding, PoolSpec, SampleShape},
    stage::Stage,
    value::Value,
};

/// Rounding of sums of a few dozen `f32` products.
const ROUNDING: f32 = 2e-5;

/// Gives parameters these values, in order.
struct Fill(VecDeque<Vec<f32>>);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let values = self.0.pop_front().unwrap();
        param.map(|tensor| {
            Tensor::from_data(TensorData::new(values, tensor.dims()), &tensor.device())
        })
    }
}

/// A model of these layers, with these parameters.
fn built(input: &SampleShape, layers: Vec<LayerSpec>, params: Vec<Vec<f32>>) -> Sequential<Stage> {
    let model = ModelSpec {
        input: input.clone(),
        layers,
    };
    let device = Device::flex().autodiff();
    let stages = model.blueprint().unwrap().build(Dtype::F32, &device);
    let mut fill = Fill(params.into());
    let filled = Sequential::new(stages).map(&mut fill);
    assert!(fill.0.is_empty(), "more values than parameters");
    filled
}

fn floats(value: Value) -> Vec<f32> {
    let data = match value {
        Value::Float2(tensor) => tensor.into_data(),
        Value::Float3(tensor) => tensor.into_data(),
        other => other.into_float4().into_data(),
    };
    data.try_to_vec().unwrap()
}

/// Runs layers on `values`, whose shape has the batch first.
fn run(
    values: &[f32],
    shape: &[usize],
    layers: Vec<LayerSpec>,
    params: Vec<Vec<f32>>,
) -> (Vec<usize>, Vec<f32>) {
    let model = built(&SampleShape::float(&shape[1..]), layers, params);
    let output = model.forward(Value::from_floats(
        values.to_vec(),
        shape,
        &Device::flex().autodiff(),
    ));
    (output.dims(), floats(output))
}

fn assert_close(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    for (got, expected) in got.iter().zip(expected) {
        assert_relative_eq!(got, expected, epsilon = ROUNDING, max_relative = ROUNDING);
    }
}

/// Numbers without a pattern that a wrong order of dimensions would keep.
fn scattered(count: usize) -> Vec<f32> {
    (0..count)
        .map(|index| ((index * index * 7 + index * 3) % 23) as f32 / 11.0 - 1.0)
        .collect()
}

#[test]
fn linear_acts_on_the_last_dimension_of_any_rank() {
    let layer = || vec![LayerSpec::Linear { out: 3, bias: true }];
    let params = || vec![vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], vec![0.5, 0.0, -0.5]];
    // [1, 2] W = [9, 12, 15], [3, -1] W = [-1, 1, 3].
    let expected = [9.5, 12.0, 14.5, -0.5, 1.0, 2.5];
    for shape in [vec![2, 2], vec![1, 2, 2], vec![1, 2, 1, 2]] {
        let (dims, values) = run(&[1.0, 2.0, 3.0, -1.0], &shape, layer(), params());
        assert_eq!(dims.last(), Some(&3));
        assert_eq!(dims.len(), shape.len());
        assert_close(&values, &expected);
    }
}

/// Value at a position of an image, 0 outside.
fn at(
    image: &[f32],
    [height, width]: [usize; 2],
    channel: usize,
    row: isize,
    column: isize,
) -> Option<f32> {
    let inside = (0..height as isize).contains(&row) && (0..width as isize).contains(&column);
    inside.then(|| image[(channel * height + row as usize) * width + column as usize])
}

#[test]
fn conv2d_sums_products_under_each_window() {
    let (channels, out, [height, width]) = (2, 3, [5, 4]);
    let image = scattered(channels * height * width);
    let settings = [
        ([3, 3], [1, 1], Padding::Same, [1, 1]),
        ([3, 1], [2, 3], Padding::Same, [1, 0]),
        ([2, 3], [1, 1], Padding::Explicit([0, 0]), [0, 0]),
        ([3, 3], [2, 1], Padding::Explicit([2, 0]), [2, 0]),
    ];
    for (kernel, stride, padding, zeros) in settings {
        let weights = scattered(out * channels * kernel[0] * kernel[1] + 5).split_off(5);
        let bias = vec![0.25, -0.5, 1.0];
        let layer = LayerSpec::Conv2d {
            out,
            kernel,
            stride,
            padding,
            bias: true,
        };
        let params = vec![weights.clone(), bias.clone()];
        let (dims, values) = run(&image, &[1, channels, height, width], vec![layer], params);

        let rows = (height + 2 * zeros[0] - kernel[0]) / stride[0] + 1;
        let columns = (width + 2 * zeros[1] - kernel[1]) / stride[1] + 1;
        assert_eq!(dims, [1, out, rows, columns]);
        let mut expected = Vec::new();
        for (filter, row, column) in positions(out, rows, columns) {
            let mut sum = bias[filter];
            for (channel, i, j) in positions(channels, kernel[0], kernel[1]) {
                let weight =
                    weights[((filter * channels + channel) * kernel[0] + i) * kernel[1] + j];
                let row = (row * stride[0] + i) as isize - zeros[0] as isize;
                let column = (column * stride[1] + j) as isize - zeros[1] as isize;
                sum += weight * at(&image, [height, width], channel, row, column).unwrap_or(0.0);
            }
            expected.push(sum);
        }
        assert_close(&values, &expected);
    }
}

fn positions(a: usize, b: usize, c: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..a).flat_map(move |x| (0..b).flat_map(move |y| (0..c).map(move |z| (x, y, z))))
}

#[test]
fn pooling_looks_at_the_image_and_never_at_the_padding() {
    let (channels, [height, width]) = (2, [5, 4]);
    // All negative: a padding that counted as 0 would be the maximum.
    let image: Vec<f32> = scattered(channels * height * width)
        .iter()
        .map(|value| value - 2.0)
        .collect();
    for (kernel, stride, padding) in [
        ([2, 2], [2, 2], [0, 0]),
        ([3, 2], [1, 2], [1, 1]),
        ([3, 3], [2, 2], [1, 0]),
    ] {
        let pool = PoolSpec {
            kernel,
            stride: Some(stride),
            padding,
        };
        let rows = (height + 2 * padding[0] - kernel[0]) / stride[0] + 1;
        let columns = (width + 2 * padding[1] - kernel[1]) / stride[1] + 1;
        let (mut maxima, mut means) = (Vec::new(), Vec::new());
        for (channel, row, column) in positions(channels, rows, columns) {
            let window: Vec<f32> = positions(1, kernel[0], kernel[1])
                .filter_map(|(_, i, j)| {
                    let row = (row * stride[0] + i) as isize - padding[0] as isize;
                    let column = (column * stride[1] + j) as isize - padding[1] as isize;
                    at(&image, [height, width], channel, row, column)
                })
                .collect();
            maxima.push(window.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            means.push(window.iter().sum::<f32>() / window.len() as f32);
        }
        let shape = [1, channels, height, width];
        let (dims, values) = run(&image, &shape, vec![LayerSpec::MaxPool2d(pool)], vec![]);
        assert_eq!(dims, [1, channels, rows, columns]);
        assert_close(&values, &maxima);
        let (dims, values) = run(&image, &shape, vec![LayerSpec::AvgPool2d(pool)], vec![]);
        assert_eq!(dims, [1, channels, rows, columns]);
        assert_close(&values, &means);
    }
}

#[test]
fn activations_match_tabulated_values() {
    let input = [-1.0, 0.0, 0.5, 2.0];
    let cases = [
        (LayerSpec::Relu, [0.0, 0.0, 0.5, 2.0]),
        // x times the normal distribution function.
        (
            LayerSpec::Gelu,
            [-0.158_655_25, 0.0, 0.345_731_23, 1.954_499_7],
        ),
        (
            LayerSpec::Tanh,
            [-0.761_594_2, 0.0, 0.462_117_16, 0.964_027_6],
        ),
    ];
    for (layer, expected) in cases {
        for shape in [vec![2, 2], vec![1, 2, 2], vec![1, 2, 2, 1]] {
            let (dims, values) = run(&input, &shape, vec![layer.clone()], vec![]);
            assert_eq!(dims, shape);
            assert_close(&values, &expected);
        }
    }
}

#[test]
fn layer_norm_centres_and_scales_each_row() {
    let input = [1.0, 2.0, 3.0, 4.0, 10.0, 10.0, 14.0, 14.0];
    let params = vec![vec![1.0, 1.0, 2.0, 1.0], vec![0.0, 0.5, 0.0, 0.0]];
    let (_, values) = run(&input, &[1, 2, 4], vec![LayerSpec::LayerNorm], params);
    // Means 2.5 and 12, variances 1.25 and 4.
    let (first, second) = (1.250_01_f32.sqrt(), 4.000_01_f32.sqrt());
    let expected = [
        -1.5 / first,
        -0.5 / first + 0.5,
        2.0 * 0.5 / first,
        1.5 / first,
        -2.0 / second,
        -2.0 / second + 0.5,
        2.0 * 2.0 / second,
        2.0 / second,
    ];
    assert_close(&values, &expected);
}

#[test]
fn batch_norm_uses_the_batch_in_training_and_its_average_in_evaluation() {
    // Two channels of two values each, two samples: channel 0 holds 1, 3, 5, 7; channel 1 holds 0, 0, 4, 4.
    let input = [1.0, 3.0, 0.0, 0.0, 5.0, 7.0, 4.0, 4.0];
    let params = vec![
        vec![1.0, 1.0],
        vec![0.0, 10.0],
        vec![0.0, 0.0],
        vec![1.0, 1.0],
    ];
    for sample in [vec![2, 2], vec![2, 1, 2]] {
        let shape: Vec<usize> = [2].into_iter().chain(sample.iter().copied()).collect();
        let norms = vec![LayerSpec::BatchNorm];
        let model = built(&SampleShape::float(sample), norms, params.clone());
        let given = Value::from_floats(input.to_vec(), &shape, &Device::flex().autodiff());
        // Means 4 and 2, variances 5 and 4.
        let (first, second) = (5.000_01_f32.sqrt(), 4.000_01_f32.sqrt());
        let expected = [
            -3.0 / first,
            -1.0 / first,
            10.0 - 2.0 / second,
            10.0 - 2.0 / second,
            1.0 / first,
            3.0 / first,
            10.0 + 2.0 / second,
            10.0 + 2.0 / second,
        ];
        assert_close(&floats(model.forward(given)), &expected);

        // Running means 0.1 * (4, 2), variances 0.9 + 0.1 * (5, 4).
        let (first, second) = (1.400_01_f32.sqrt(), 1.300_01_f32.sqrt());
        let given = Value::from_floats(input.to_vec(), &shape, &Device::flex());
        let expected: Vec<f32> = [0.6, 2.6]
            .into_iter()
            .map(|x| x / first)
            .chain([-0.2; 2].map(|x| 10.0 + x / second))
            .chain([4.6, 6.6].map(|x| x / first))
            .chain([3.8; 2].map(|x| 10.0 + x / second))
            .collect();
        assert_close(&floats(model.valid().forward(given)), &expected);
    }
}

#[test]
fn batch_norm_over_features_gives_mean_0_and_variance_1() {
    // So large that the 1e-5 that is added to the variance does not count.
    let input: Vec<f32> = scattered(32).iter().map(|value| 10.0 * value).collect();
    let (_, values) = run(
        &input,
        &[8, 4],
        vec![LayerSpec::BatchNorm],
        vec![vec![1.0; 4], vec![0.0; 4], vec![0.0; 4], vec![1.0; 4]],
    );
    for feature in 0..4 {
        let column: Vec<f32> = values.iter().skip(feature).step_by(4).copied().collect();
        assert_relative_eq!(column.iter().sum::<f32>() / 8.0, 0.0, epsilon = ROUNDING);
        assert_relative_eq!(
            column.iter().map(|x| x * x).sum::<f32>() / 8.0,
            1.0,
            epsilon = ROUNDING
        );
    }
}

#[test]
fn dropout_drops_its_share_and_scales_the_rest() {
    let p = 0.25;
    let count = 64 * 1024;
    let model = built(
        &SampleShape::float([1024]),
        vec![LayerSpec::Dropout { p }],
        vec![],
    );
    let given = || vec![3.0; count];
    let shape = [64, 1024];
    let values = floats(model.forward(Value::from_floats(
        given(),
        &shape,
        &Device::flex().autodiff(),
    )));
    let dropped = values.iter().filter(|value| **value == 0.0).count();
    // Six standard deviations of a binomial count.
    let spread = 6.0 * (count as f64 * p * (1.0 - p)).sqrt();
    assert!(
        (dropped as f64 - count as f64 * p).abs() < spread,
        "{dropped} of {count}"
    );
    let scaled = 3.0 / 0.75;
    assert!(
        values
            .iter()
            .all(|value| *value == 0.0 || (value - scaled).abs() < ROUNDING)
    );

    let evaluated = model
        .valid()
        .forward(Value::from_floats(given(), &shape, &Device::flex()));
    assert_eq!(floats(evaluated), given());
}

#[test]
fn embedding_looks_up_rows() {
    let table: Vec<f32> = (0..10).map(|value| value as f32).collect();
    let device = Device::flex().autodiff();
    let model = built(
        &SampleShape::tokens([3]),
        vec![LayerSpec::Embedding { vocab: 5, dim: 2 }],
        vec![table],
    );
    let output = model.forward(Value::from_tokens(vec![4, 0, 1, 1, 3, 2], &[2, 3], &device));
    assert_eq!(output.dims(), [2, 3, 2]);
    assert_eq!(
        floats(output),
        [8.0, 9.0, 0.0, 1.0, 2.0, 3.0, 2.0, 3.0, 6.0, 7.0, 4.0, 5.0]
    );
}

#[test]
fn an_unembedding_multiplies_with_every_vector_of_the_embedding() {
    let table = scattered(5 * 2);
    let layers = vec![
        LayerSpec::Embedding { vocab: 5, dim: 2 },
        LayerSpec::Unembedding,
    ];
    let (ids, device) = ([3, 0, 4], Device::flex().autodiff());
    // Both places of the one weight are given it.
    let model = built(
        &SampleShape::tokens([3]),
        layers,
        vec![table.clone(), table.clone()],
    );
    let output = model.forward(Value::from_tokens(ids.to_vec(), &[1, 3], &device));
    assert_eq!(output.dims(), [1, 3, 5]);
    let vector = |id: usize| &table[2 * id..2 * id + 2];
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let expected = ids
        .iter()
        .flat_map(|&id| (0..5).map(move |other| product(vector(id as usize), vector(other))));
    assert_close(&floats(output), &expected.collect::<Vec<_>>());
}

#[test]
fn positions_add_a_vector_for_each_place() {
    let input = scattered(2 * 3 * 2);
    let table = scattered(20).split_off(14);
    let (dims, values) = run(
        &input,
        &[2, 3, 2],
        vec![LayerSpec::Positions],
        vec![table.clone()],
    );
    assert_eq!(dims, [2, 3, 2]);
    let expected: Vec<f32> = input
        .iter()
        .zip(table.iter().cycle())
        .map(|(x, p)| x + p)
        .collect();
    assert_close(&values, &expected);
}

/// `softmax(q k^T / sqrt(dim / heads)) v` in each head, then the output's map.
#[test]
fn attention_weighs_the_places_that_it_sees() {
    let (length, dim, heads) = (4, 6, 2);
    let size = dim / heads;
    let input = scattered(length * dim);
    let maps: Vec<Vec<f32>> = (0..4)
        .flat_map(|map| {
            let weight: Vec<f32> = scattered(dim * dim + map).split_off(map);
            let weight = weight.into_iter().map(|value| value / 2.0).collect();
            [weight, scattered(dim + 2 * map + 1).split_off(2 * map + 1)]
        })
        .collect();
    let map = |map: usize, rows: &[f32]| -> Vec<f32> {
        let (weight, bias) = (&maps[2 * map], &maps[2 * map + 1]);
        let value = |row: &[f32], out: usize| {
            let products = row
                .iter()
                .enumerate()
                .map(|(x, value)| value * weight[x * dim + out]);
            products.sum::<f32>() + bias[out]
        };
        let rows = rows.chunks(dim);
        rows.flat_map(|row| (0..dim).map(|out| value(row, out)).collect::<Vec<_>>())
            .collect()
    };
    // In the order of their names: query, key, value, output.
    let [query, key, value] = [0, 1, 2].map(|one| map(one, &input));
    for causal in [true, false] {
        let mut context = vec![0.0; length * dim];
        for (place, head) in (0..length).flat_map(|place| (0..heads).map(move |head| (place, head)))
        {
            let at = |rows: &[f32], row: usize, x: usize| rows[row * dim + head * size + x];
            let seen = if causal { place + 1 } else { length };
            let score = |other: usize| -> f32 {
                let products = (0..size).map(|x| at(&query, place, x) * at(&key, other, x));
                (products.sum::<f32>() / (size as f32).sqrt()).exp()
            };
            let total: f32 = (0..seen).map(score).sum();
            for x in 0..size {
                let weighed = (0..seen).map(|other| score(other) / total * at(&value, other, x));
                context[place * dim + head * size + x] = weighed.sum();
            }
        }
        let layer = LayerSpec::Attention { heads, causal };
        let (dims, values) = run(&input, &[1, length, dim], vec![layer], maps.clone());
        assert_eq!(dims, [1, length, dim]);
        assert_close(&values, &map(3, &context));
    }
}

#[test]
fn a_flatten_keeps_the_values_in_order() {
    let values = scattered(24);
    for shape in [vec![2, 12], vec![2, 3, 4], vec![2, 3, 2, 2]] {
        assert_eq!(
            run(&values, &shape, vec![LayerSpec::Flatten], vec![]),
            (vec![2, 12], values.clone())
        );
    }
}

#[test]
fn residuals_nest() {
    // f(x) = relu(x) + tanh(relu(x)), and the whole is 2 (x + f(x)).
    let inner = LayerSpec::Residual(vec![LayerSpec::Tanh]);
    let layers = vec![
        LayerSpec::Residual(vec![LayerSpec::Relu, inner]),
        LayerSpec::Residual(vec![LayerSpec::Flatten]),
    ];
    let (_, values) = run(&[-1.0, 0.5], &[1, 2], layers, vec![]);
    assert_close(&values, &[-2.0, 2.0 * (1.0 + 0.462_117_16)]);
}

#[test]
fn a_value_of_another_shape_is_refused() {
    let device = Device::flex().autodiff();
    let value = || Value::from_floats(vec![0.0; 6], &[2, 3], &device);
    let model = built(&SampleShape::float([4]), vec![LayerSpec::Relu], vec![]);
    let error = catch(|| model.forward(value())).unwrap_err();
    let words = "one sample has the shape [3], but [4] is wanted";
    assert!(error.contains(words), "{error}");
    assert!(catch(|| value().into_tokens()).is_err());
    assert!(catch(|| Value::from_tokens(vec![0; 6], &[1, 2, 3], &device)).is_err());
    for shape in [&[6][..], &[2, 4]] {
        assert!(catch(|| Value::from_floats(vec![0.0; 6], shape, &device)).is_err());
    }
}
