//! The input requirements, output shape and number of parameters of each kind of layer.

use super::{
    shape::{LayerShape, MAX_ELEMENTS},
    spec::{ElementKind, LayerSpec, Padding, PoolSpec, SampleShape},
    window::positions,
};

const MAX_RANK: usize = 3;

/// The problem with a model or residual that is empty.
pub(super) const NO_LAYERS: &str = "it has no layers; give it at least one";

/// Shape of one output sample of a layer, or the reason why it cannot take its input.
///
/// `inner` holds the shapes inside a residual.
pub(super) fn output(
    layer: &LayerSpec,
    input: &SampleShape,
    inner: &[LayerShape],
) -> Result<SampleShape, String> {
    let kind = match (layer, input.kind) {
        (LayerSpec::Flatten | LayerSpec::Reshape { .. }, kind) => kind,
        (LayerSpec::Embedding { .. }, ElementKind::Float) => {
            return Err("it needs token ids, not numbers; an embedding comes first, on an input of token ids".into());
        }
        (LayerSpec::Embedding { .. }, ElementKind::Token) | (_, ElementKind::Float) => {
            ElementKind::Float
        }
        (_, ElementKind::Token) => {
            return Err("it needs numbers, not token ids; put an embedding before it".into());
        }
    };
    let dims = output_dims(layer, input, inner)?;
    let output = SampleShape { kind, dims };
    check_sample(&output, "its output")?;
    Ok(output)
}

fn output_dims(
    layer: &LayerSpec,
    input: &SampleShape,
    inner: &[LayerShape],
) -> Result<Vec<usize>, String> {
    match layer {
        LayerSpec::Linear { out, .. } => {
            not_zero("out", &[*out])?;
            Ok(with_last(&input.dims, *out))
        }
        LayerSpec::Conv2d {
            out,
            kernel,
            stride,
            padding,
            ..
        } => {
            not_zero("out", &[*out])?;
            not_zero("kernel", kernel)?;
            not_zero("stride", stride)?;
            if *padding == Padding::Same && kernel.iter().any(|k| k % 2 == 0) {
                return Err(format!(
                    "`same` padding needs an odd kernel, not {kernel:?}; use an odd kernel or give the padding in numbers"
                ));
            }
            let [_, height, width] = image(input)?;
            let [rows, columns] = windows(
                [height, width],
                *kernel,
                *stride,
                padding.each_side(*kernel),
            )?;
            Ok(vec![*out, rows, columns])
        }
        LayerSpec::MaxPool2d(pool) | LayerSpec::AvgPool2d(pool) => pooled(pool, input),
        LayerSpec::Flatten => Ok(vec![input.dims.iter().product()]),
        LayerSpec::Reshape { shape } => reshaped(shape, input),
        LayerSpec::Dropout { p } => {
            in_range(
                "p",
                *p,
                (0.0..1.0).contains(p),
                "at least 0 and less than 1",
            )?;
            Ok(input.dims.clone())
        }
        LayerSpec::BatchNorm { epsilon, momentum } => {
            positive("epsilon", *epsilon)?;
            in_range(
                "momentum",
                *momentum,
                (0.0..=1.0).contains(momentum),
                "between 0 and 1",
            )?;
            Ok(input.dims.clone())
        }
        LayerSpec::LayerNorm { epsilon } => {
            positive("epsilon", *epsilon)?;
            Ok(input.dims.clone())
        }
        LayerSpec::Embedding { vocab, dim } => embedded(*vocab, *dim, input),
        LayerSpec::Unembedding { vocab } => {
            not_zero("vocab", &[*vocab])?;
            Ok(with_last(&input.dims, *vocab))
        }
        LayerSpec::Positions => vectors(input).map(Vec::from),
        LayerSpec::Attention { heads, .. } => {
            not_zero("heads", &[*heads])?;
            let [length, dim] = vectors(input)?;
            match dim.is_multiple_of(*heads) {
                true => Ok(vec![length, dim]),
                false => Err(format!(
                    "{heads} heads do not divide {dim} values; use a number of heads that does"
                )),
            }
        }
        LayerSpec::ZeroPad { padding } => padded(*padding, input),
        LayerSpec::Residual { .. } => match inner.last() {
            None => Err(NO_LAYERS.into()),
            Some(last) if last.output != *input => Err(format!(
                "its layers turn this into {}; `x + f(x)` needs equal shapes",
                last.output
            )),
            Some(_) => Ok(input.dims.clone()),
        },
        LayerSpec::Relu
        | LayerSpec::Gelu
        | LayerSpec::Tanh
        | LayerSpec::Sigmoid
        | LayerSpec::Softmax => Ok(input.dims.clone()),
    }
}

/// Number of values that training changes in one layer.
pub(super) fn param_count(
    layer: &LayerSpec,
    input: &SampleShape,
    inner: &[LayerShape],
) -> Result<u64, String> {
    let first = input.dims.first().copied().unwrap_or(0);
    let last = input.dims.last().copied().unwrap_or(0);
    let bias_of = |out: usize, bias: bool| if bias { out as u64 } else { 0 };
    let count = match layer {
        LayerSpec::Linear { out, bias } => {
            product(&[last, *out]).and_then(|weight| weight.checked_add(bias_of(*out, *bias)))
        }
        LayerSpec::Conv2d {
            out,
            kernel: [height, width],
            bias,
            ..
        } => product(&[*out, first, *height, *width])
            .and_then(|weight| weight.checked_add(bias_of(*out, *bias))),
        LayerSpec::BatchNorm { .. } => product(&[first, 2]),
        LayerSpec::LayerNorm { .. } => product(&[last, 2]),
        LayerSpec::Embedding { vocab, dim } => product(&[*vocab, *dim]),
        LayerSpec::Positions => product(&[first, last]),
        LayerSpec::Attention { .. } => product(&[last, last])
            .and_then(|weight| weight.checked_add(last as u64)?.checked_mul(4)),
        LayerSpec::Residual { .. } => Some(LayerShape::param_sum(inner)),
        LayerSpec::MaxPool2d(_)
        | LayerSpec::AvgPool2d(_)
        | LayerSpec::Unembedding { .. }
        | LayerSpec::Flatten
        | LayerSpec::Reshape { .. }
        | LayerSpec::Relu
        | LayerSpec::Gelu
        | LayerSpec::Tanh
        | LayerSpec::Sigmoid
        | LayerSpec::Softmax
        | LayerSpec::Dropout { .. }
        | LayerSpec::ZeroPad { .. } => Some(0),
    };
    count
        .filter(|&count| count <= MAX_ELEMENTS)
        .ok_or_else(|| too_large("the parameters"))
}

/// Checks that a sample has one to three dimensions, none of them 0, and not too many values.
pub(super) fn check_sample(shape: &SampleShape, what: &'static str) -> Result<(), String> {
    if shape.dims.is_empty() || shape.dims.len() > MAX_RANK {
        return Err(
            "it needs one to three dimensions, without the batch; reshape to at most [channels, height, width]".into(),
        );
    }
    not_zero(what, &shape.dims)?;
    if shape.elements() > MAX_ELEMENTS {
        Err(too_large("one sample"))
    } else {
        Ok(())
    }
}

fn pooled(pool: &PoolSpec, input: &SampleShape) -> Result<Vec<usize>, String> {
    let PoolSpec {
        kernel,
        stride,
        padding,
    } = *pool;
    not_zero("kernel", &kernel)?;
    not_zero("stride", &stride)?;
    if padding[0] > kernel[0] / 2 || padding[1] > kernel[1] / 2 {
        return Err(format!(
            "padding {padding:?} is more than half the kernel {kernel:?}; use less padding or a larger kernel"
        ));
    }
    let [channels, height, width] = image(input)?;
    let [rows, columns] = windows([height, width], kernel, stride, padding)?;
    Ok(vec![channels, rows, columns])
}

fn reshaped(shape: &[usize], input: &SampleShape) -> Result<Vec<usize>, String> {
    not_zero("shape", shape)?;
    let wanted = SampleShape::float(shape).elements();
    if wanted == input.elements() {
        Ok(shape.to_vec())
    } else {
        let got = input.elements();
        Err(format!(
            "shape {shape:?} holds {wanted} values, but its input has {got}; the numbers must be equal"
        ))
    }
}

fn embedded(vocab: usize, dim: usize, input: &SampleShape) -> Result<Vec<usize>, String> {
    not_zero("vocab", &[vocab])?;
    not_zero("dim", &[dim])?;
    if input.dims.len() >= MAX_RANK {
        return Err("it needs token ids in one or two dimensions; flatten them first".into());
    }
    let mut dims = input.dims.clone();
    dims.push(dim);
    Ok(dims)
}

fn padded(
    [top, bottom, left, right]: [usize; 4],
    input: &SampleShape,
) -> Result<Vec<usize>, String> {
    let [channels, height, width] = image(input)?;
    let grown =
        |size: usize, before: usize, after: usize| size.checked_add(before)?.checked_add(after);
    match (grown(height, top, bottom), grown(width, left, right)) {
        (Some(height), Some(width)) => Ok(vec![channels, height, width]),
        _ => Err(too_large("one sample")),
    }
}

fn image(input: &SampleShape) -> Result<[usize; 3], String> {
    <[usize; 3]>::try_from(input.dims.as_slice()).map_err(|_| {
        "it needs [channels, height, width]; put a reshape before it, or take out the flatten"
            .into()
    })
}

fn vectors(input: &SampleShape) -> Result<[usize; 2], String> {
    <[usize; 2]>::try_from(input.dims.as_slice()).map_err(|_| {
        "it needs [length, dim]; put an embedding of a row of token ids before it".into()
    })
}

fn windows(
    size: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
) -> Result<[usize; 2], String> {
    let padded = [0, 1].map(|axis| padding[axis].saturating_mul(2).saturating_add(size[axis]));
    if padded.iter().any(|&size| size as u64 > MAX_ELEMENTS) {
        return Err(too_large("one sample with padding"));
    }
    let along = |axis: usize| positions(size[axis], kernel[axis], stride[axis], padding[axis]);
    match (along(0), along(1)) {
        (Some(rows), Some(columns)) => Ok([rows, columns]),
        _ => Err(format!(
            "a kernel of {kernel:?} does not fit in {padded:?}, the height and width with padding; use a smaller kernel, \
             more padding or less pooling before it"
        )),
    }
}

fn with_last(dims: &[usize], last: usize) -> Vec<usize> {
    let mut dims = dims.to_vec();
    if let Some(dim) = dims.last_mut() {
        *dim = last;
    }
    dims
}

fn product(sizes: &[usize]) -> Option<u64> {
    sizes
        .iter()
        .try_fold(1_u64, |product, &size| product.checked_mul(size as u64))
}

fn not_zero(what: &'static str, sizes: &[usize]) -> Result<(), String> {
    if sizes.contains(&0) {
        Err(format!("`{what}` is 0; it must be at least 1"))
    } else {
        Ok(())
    }
}

fn positive(what: &'static str, value: f64) -> Result<(), String> {
    in_range(
        what,
        value,
        value.is_finite() && value > 0.0,
        "a finite number above 0",
    )
}

fn in_range(
    what: &'static str,
    value: f64,
    inside: bool,
    range: &'static str,
) -> Result<(), String> {
    if inside {
        Ok(())
    } else {
        Err(format!("`{what}` is {value}; it must be {range}"))
    }
}

fn too_large(what: &'static str) -> String {
    format!("{what} would hold more than {MAX_ELEMENTS} values; use smaller sizes")
}
