//! The input requirements, output shape and number of parameters of each kind of layer.

use super::{
    shape::{LayerShape, MAX_ELEMENTS},
    spec::{ElementKind, LayerSpec, Padding, PoolSpec, SampleShape},
    window::positions,
};

const MAX_RANK: usize = 3;

/// The problem with a model or residual that is empty.
pub(super) const NO_LAYERS: &str = "it has no layers; give it at least one";

/// Shape of one output sample of a layer and the number of values that training changes in it, or the reason why it cannot
/// take its input.
///
/// `inner` holds the shapes inside a residual.
pub(super) fn output_and_params(
    layer: &LayerSpec,
    input: &SampleShape,
    inner: &[LayerShape],
) -> Result<(SampleShape, u64), String> {
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
    let (dims, params) = sizes(layer, input, inner)?;
    let output = SampleShape { kind, dims };
    check_sample(&output, "its output")?;
    let params = params.filter(|&params| params <= MAX_ELEMENTS);
    Ok((output, params.ok_or_else(|| too_large("the parameters"))?))
}

/// Both, before they are checked.
fn sizes(
    layer: &LayerSpec,
    input: &SampleShape,
    inner: &[LayerShape],
) -> Result<(Vec<usize>, Option<u64>), String> {
    let first = input.dims.first().copied().unwrap_or(0);
    let last = input.dims.last().copied().unwrap_or(0);
    let same = || input.dims.clone();
    let biased = |weight: &[usize], out: usize, bias: bool| {
        product(weight)?.checked_add(if bias { out as u64 } else { 0 })
    };
    Ok(match layer {
        LayerSpec::Linear { out, bias } => {
            not_zero("out", &[*out])?;
            (
                with_last(&input.dims, *out),
                biased(&[last, *out], *out, *bias),
            )
        }
        LayerSpec::Conv2d {
            out,
            kernel,
            stride,
            padding,
            bias,
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
            let weight = [*out, first, kernel[0], kernel[1]];
            (vec![*out, rows, columns], biased(&weight, *out, *bias))
        }
        LayerSpec::MaxPool2d(pool) | LayerSpec::AvgPool2d(pool) => (pooled(pool, input)?, Some(0)),
        LayerSpec::Flatten => (vec![input.dims.iter().product()], Some(0)),
        LayerSpec::Reshape { shape } => (reshaped(shape, input)?, Some(0)),
        LayerSpec::Dropout { p } => {
            let inside = (0.0..1.0).contains(p);
            in_range("p", *p, inside, "at least 0 and less than 1")?;
            (same(), Some(0))
        }
        LayerSpec::BatchNorm { epsilon, momentum } => {
            positive("epsilon", *epsilon)?;
            let inside = (0.0..=1.0).contains(momentum);
            in_range("momentum", *momentum, inside, "between 0 and 1")?;
            (same(), product(&[first, 2]))
        }
        LayerSpec::LayerNorm { epsilon } => {
            positive("epsilon", *epsilon)?;
            (same(), product(&[last, 2]))
        }
        LayerSpec::Embedding { vocab, dim } => {
            (embedded(*vocab, *dim, input)?, product(&[*vocab, *dim]))
        }
        LayerSpec::Unembedding { vocab } => {
            not_zero("vocab", &[*vocab])?;
            (with_last(&input.dims, *vocab), Some(0))
        }
        LayerSpec::Positions => (vectors(input)?.into(), product(&[first, last])),
        LayerSpec::Attention { heads, .. } => {
            not_zero("heads", &[*heads])?;
            let [_, dim] = vectors(input)?;
            if !dim.is_multiple_of(*heads) {
                return Err(format!(
                    "{heads} heads do not divide {dim} values; use a number of heads that does"
                ));
            }
            let map = biased(&[dim, dim], dim, true);
            (same(), map.and_then(|map| map.checked_mul(4)))
        }
        LayerSpec::Repeat { .. } => {
            return Err("it is a group; put its layers into the list".into());
        }
        LayerSpec::Residual(_) => match inner.last() {
            None => return Err(NO_LAYERS.into()),
            Some(last) if last.output != *input => {
                return Err(format!(
                    "its layers turn this into {}; `x + f(x)` needs equal shapes",
                    last.output
                ));
            }
            Some(_) => (same(), Some(LayerShape::param_sum(inner))),
        },
        LayerSpec::Relu
        | LayerSpec::Gelu
        | LayerSpec::Tanh
        | LayerSpec::Sigmoid
        | LayerSpec::Softmax => (same(), Some(0)),
    })
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
        kernel, padding, ..
    } = *pool;
    let stride = pool.stride();
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
