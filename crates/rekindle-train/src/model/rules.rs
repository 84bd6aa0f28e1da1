//! The input requirements, output shape and number of parameters of each kind of layer.

use super::{
    shape::{LayerShape, MAX_ELEMENTS},
    shape_error::ShapeProblem,
    spec::{ElementKind, LayerSpec, Padding, PoolSpec, SampleShape},
    window::positions,
};

const MAX_RANK: usize = 3;

/// Shape of one output sample of a layer, or the reason why it cannot take its input.
///
/// `inner` holds the shapes inside a residual.
pub(super) fn output(
    layer: &LayerSpec,
    input: &SampleShape,
    inner: &[LayerShape],
) -> Result<SampleShape, ShapeProblem> {
    let kind = match (layer, input.kind) {
        (LayerSpec::Flatten | LayerSpec::Reshape { .. }, kind) => kind,
        (LayerSpec::Embedding { .. }, ElementKind::Float) => return Err(ShapeProblem::WantsTokens),
        (LayerSpec::Embedding { .. }, ElementKind::Token) | (_, ElementKind::Float) => {
            ElementKind::Float
        }
        (_, ElementKind::Token) => return Err(ShapeProblem::WantsNumbers),
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
) -> Result<Vec<usize>, ShapeProblem> {
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
                return Err(ShapeProblem::EvenKernelForSame { kernel: *kernel });
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
                false => Err(ShapeProblem::Heads { heads: *heads, dim }),
            }
        }
        LayerSpec::ZeroPad { padding } => padded(*padding, input),
        LayerSpec::Residual { .. } => match inner.last() {
            None => Err(ShapeProblem::NoLayers),
            Some(last) if last.output != *input => Err(ShapeProblem::ResidualChangesShape {
                output: last.output.clone(),
            }),
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
) -> Result<u64, ShapeProblem> {
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
        .ok_or(too_large("the parameters"))
}

/// Checks that a sample has one to three dimensions, none of them 0, and not too many values.
pub(super) fn check_sample(shape: &SampleShape, what: &'static str) -> Result<(), ShapeProblem> {
    if shape.dims.is_empty() || shape.dims.len() > MAX_RANK {
        return Err(ShapeProblem::WrongRank {
            wants: "one to three dimensions, without the batch",
            advice: "reshape to at most [channels, height, width]",
        });
    }
    not_zero(what, &shape.dims)?;
    if shape.elements() > MAX_ELEMENTS {
        Err(too_large("one sample"))
    } else {
        Ok(())
    }
}

fn pooled(pool: &PoolSpec, input: &SampleShape) -> Result<Vec<usize>, ShapeProblem> {
    let PoolSpec {
        kernel,
        stride,
        padding,
    } = *pool;
    not_zero("kernel", &kernel)?;
    not_zero("stride", &stride)?;
    if padding[0] > kernel[0] / 2 || padding[1] > kernel[1] / 2 {
        return Err(ShapeProblem::PoolPaddingTooLarge { padding, kernel });
    }
    let [channels, height, width] = image(input)?;
    let [rows, columns] = windows([height, width], kernel, stride, padding)?;
    Ok(vec![channels, rows, columns])
}

fn reshaped(shape: &[usize], input: &SampleShape) -> Result<Vec<usize>, ShapeProblem> {
    not_zero("shape", shape)?;
    let wanted = SampleShape::float(shape).elements();
    if wanted == input.elements() {
        Ok(shape.to_vec())
    } else {
        Err(ShapeProblem::ReshapeCount {
            shape: shape.to_vec(),
            wanted,
            got: input.elements(),
        })
    }
}

fn embedded(vocab: usize, dim: usize, input: &SampleShape) -> Result<Vec<usize>, ShapeProblem> {
    not_zero("vocab", &[vocab])?;
    not_zero("dim", &[dim])?;
    if input.dims.len() >= MAX_RANK {
        return Err(ShapeProblem::WrongRank {
            wants: "token ids in one or two dimensions",
            advice: "flatten them first",
        });
    }
    let mut dims = input.dims.clone();
    dims.push(dim);
    Ok(dims)
}

fn padded(
    [top, bottom, left, right]: [usize; 4],
    input: &SampleShape,
) -> Result<Vec<usize>, ShapeProblem> {
    let [channels, height, width] = image(input)?;
    let grown =
        |size: usize, before: usize, after: usize| size.checked_add(before)?.checked_add(after);
    match (grown(height, top, bottom), grown(width, left, right)) {
        (Some(height), Some(width)) => Ok(vec![channels, height, width]),
        _ => Err(too_large("one sample")),
    }
}

fn image(input: &SampleShape) -> Result<[usize; 3], ShapeProblem> {
    <[usize; 3]>::try_from(input.dims.as_slice()).map_err(|_| ShapeProblem::WrongRank {
        wants: "[channels, height, width]",
        advice: "put a reshape before it, or take out the flatten",
    })
}

fn vectors(input: &SampleShape) -> Result<[usize; 2], ShapeProblem> {
    <[usize; 2]>::try_from(input.dims.as_slice()).map_err(|_| ShapeProblem::WrongRank {
        wants: "[length, dim]",
        advice: "put an embedding of a row of token ids before it",
    })
}

fn windows(
    size: [usize; 2],
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
) -> Result<[usize; 2], ShapeProblem> {
    let padded = [0, 1].map(|axis| padding[axis].saturating_mul(2).saturating_add(size[axis]));
    if padded.iter().any(|&size| size as u64 > MAX_ELEMENTS) {
        return Err(too_large("one sample with padding"));
    }
    let along = |axis: usize| positions(size[axis], kernel[axis], stride[axis], padding[axis]);
    match (along(0), along(1)) {
        (Some(rows), Some(columns)) => Ok([rows, columns]),
        _ => Err(ShapeProblem::KernelTooLarge { kernel, padded }),
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

fn not_zero(what: &'static str, sizes: &[usize]) -> Result<(), ShapeProblem> {
    if sizes.contains(&0) {
        Err(ShapeProblem::ZeroSize { what })
    } else {
        Ok(())
    }
}

fn positive(what: &'static str, value: f64) -> Result<(), ShapeProblem> {
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
) -> Result<(), ShapeProblem> {
    if inside {
        Ok(())
    } else {
        Err(ShapeProblem::OutOfRange { what, value, range })
    }
}

fn too_large(what: &'static str) -> ShapeProblem {
    ShapeProblem::TooLarge {
        what,
        limit: MAX_ELEMENTS,
    }
}
