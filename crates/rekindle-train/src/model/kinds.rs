//! What each kind of layer needs of its input, what it makes of it, and the module that does so.

use burn::nn::{
    BatchNormConfig, DropoutConfig, EmbeddingConfig, Gelu, LayerNormConfig, PaddingConfig2d, Relu,
    Tanh,
    attention::MultiHeadAttentionConfig,
    conv::Conv2dConfig,
    pool::{AvgPool2dConfig, MaxPool2dConfig},
};

use super::{
    init::{conv_fan_in, independent_values, unit_rows},
    maker::Maker,
    rules::{
        NO_LAYERS, check_sample, image, not_zero, pooled, product, too_large, vectors, windows,
        with_last,
    },
    shape::{LayerShape, MAX_ELEMENTS},
    spec::{ElementKind, LayerSpec, Padding, SampleShape},
    stage::{Attention, Flatten, Op},
};

/// Makes a layer's module.
pub(super) type Make<'a> = Box<dyn FnOnce(&mut Maker<'_>) -> Op + 'a>;

/// A layer whose input is known.
pub(super) struct Placed<'a> {
    pub(super) shape: LayerShape,
    pub(super) make: Make<'a>,
}

/// The layer `list[index]` on an input, or the reason why it cannot take it.
///
/// `inner` has the layers inside a residual. `model` has the model's own layers: an embedding is the first of them, as no
/// other layer takes token ids.
pub(super) fn place<'a>(
    list: &'a [LayerSpec],
    index: usize,
    input: &SampleShape,
    inner: Vec<Placed<'a>>,
    model: &[LayerSpec],
) -> Result<Placed<'a>, String> {
    let is_embedding = matches!(list[index], LayerSpec::Embedding { .. });
    match input.kind {
        ElementKind::Float if is_embedding => return Err(
            "it needs token ids, not numbers; an embedding comes first, on an input of token ids"
                .into(),
        ),
        ElementKind::Token if !is_embedding => {
            return Err("it needs numbers, not token ids; put an embedding before it".into());
        }
        _ => {}
    }
    let first = input.dims.first().copied().unwrap_or(0);
    let last = input.dims.last().copied().unwrap_or(0);
    let same = || input.dims.clone();
    let biased = |weight: &[usize], out: usize, bias: bool| {
        product(weight)?.checked_add(if bias { out as u64 } else { 0 })
    };
    let (dims, params, make) = match list[index] {
        LayerSpec::Linear { out, bias } => {
            not_zero("out", &[out])?;
            let make = drawn(move |maker| Op::Linear(maker.linear(list, index, [last, out], bias)));
            let params = biased(&[last, out], out, bias);
            (with_last(&input.dims, out), params, make)
        }
        LayerSpec::Conv2d {
            out,
            kernel,
            stride,
            padding,
            bias,
        } => {
            not_zero("out", &[out])?;
            not_zero("kernel", &kernel)?;
            not_zero("stride", &stride)?;
            if padding == Padding::Same && kernel.iter().any(|k| k % 2 == 0) {
                return Err(format!(
                    "`same` padding needs an odd kernel, not {kernel:?}; use an odd kernel or give the padding in numbers"
                ));
            }
            let padding = padding.each_side(kernel);
            let [channels, height, width] = image(input)?;
            let [rows, columns] = windows([height, width], kernel, stride, padding)?;
            let make = drawn(move |maker| {
                let fan_in = conv_fan_in([channels, height, width], kernel, stride, padding);
                let (weight, first) = independent_values(&list[index + 1..], fan_in, bias);
                let config = Conv2dConfig::new([channels, out], kernel)
                    .with_stride(stride)
                    .with_padding(around(padding))
                    .with_bias(false)
                    .with_initializer(weight);
                let mut conv = config.init(maker.device);
                conv.bias = bias.then(|| first.init([out], maker.device));
                Op::Conv2d(maker.drawn(conv))
            });
            let params = biased(&[out, channels, kernel[0], kernel[1]], out, bias);
            (vec![out, rows, columns], params, make)
        }
        LayerSpec::MaxPool2d(pool) => {
            let dims = pooled(&pool, input)?;
            let config = MaxPool2dConfig::new(pool.kernel)
                .with_strides(pool.stride())
                .with_padding(around(pool.padding));
            (dims, Some(0), plain(Op::MaxPool2d(config.init())))
        }
        LayerSpec::AvgPool2d(pool) => {
            let dims = pooled(&pool, input)?;
            let config = AvgPool2dConfig::new(pool.kernel)
                .with_strides(pool.stride())
                .with_padding(around(pool.padding))
                .with_count_include_pad(false);
            (dims, Some(0), plain(Op::AvgPool2d(config.init())))
        }
        LayerSpec::Flatten => {
            let all = input.dims.iter().product();
            (vec![all], Some(0), plain(Op::Flatten(Flatten)))
        }
        LayerSpec::Relu => (same(), Some(0), plain(Op::Relu(Relu::new()))),
        LayerSpec::Gelu => (same(), Some(0), plain(Op::Gelu(Gelu::new()))),
        LayerSpec::Tanh => (same(), Some(0), plain(Op::Tanh(Tanh::new()))),
        LayerSpec::Dropout { p } => {
            if !(0.0..1.0).contains(&p) {
                return Err(format!("`p` is {p}; it must be at least 0 and less than 1"));
            }
            let dropout = DropoutConfig::new(p).init();
            (same(), Some(0), plain(Op::Dropout(dropout)))
        }
        LayerSpec::BatchNorm => {
            let make = drawn(move |maker| {
                let config = BatchNormConfig::new(first);
                Op::BatchNorm(maker.drawn(config.init(maker.device)))
            });
            (same(), product(&[first, 2]), make)
        }
        LayerSpec::LayerNorm => {
            let make = drawn(move |maker| {
                let config = LayerNormConfig::new(last);
                Op::LayerNorm(maker.drawn(config.init(maker.device)))
            });
            (same(), product(&[last, 2]), make)
        }
        LayerSpec::Embedding { vocab, dim } => {
            not_zero("vocab", &[vocab])?;
            not_zero("dim", &[dim])?;
            let is_shared = model.contains(&LayerSpec::Unembedding);
            let make = drawn(move |maker| {
                let mut config = EmbeddingConfig::new(vocab, dim);
                if is_shared {
                    config = config.with_initializer(unit_rows(dim));
                }
                let embedding = maker.drawn(config.init(maker.device));
                maker.embedding = Some(embedding.clone());
                Op::Embedding(embedding)
            });
            (vec![first, dim], product(&[vocab, dim]), make)
        }
        LayerSpec::Unembedding => {
            let Some(&LayerSpec::Embedding { vocab, dim }) = model.first() else {
                return Err(
                    "it shares the weight of the model's embedding, and there is none; put one first"
                        .into(),
                );
            };
            if dim != last {
                return Err(format!(
                    "it shares the weight of the model's embedding, so it needs vectors of {dim} values; use a linear \
                     layer before it, or an embedding with `dim = {last}`"
                ));
            }
            let make = drawn(|maker| {
                let shared = maker.embedding.clone();
                Op::Unembedding(shared.unwrap_or_else(|| unreachable!("the embedding is first")))
            });
            (with_last(&input.dims, vocab), Some(0), make)
        }
        LayerSpec::Positions => {
            let [length, dim] = vectors(input)?;
            let make = drawn(move |maker| {
                let places = EmbeddingConfig::new(length, dim).with_initializer(unit_rows(dim));
                Op::Positions(maker.drawn(places.init(maker.device)))
            });
            (same(), product(&[length, dim]), make)
        }
        LayerSpec::Attention { heads, causal } => {
            not_zero("heads", &[heads])?;
            let [_, dim] = vectors(input)?;
            if !dim.is_multiple_of(heads) {
                return Err(format!(
                    "{heads} heads do not divide {dim} values; use a number of heads that does"
                ));
            }
            let make = drawn(move |maker| {
                let config = MultiHeadAttentionConfig::new(dim, heads).with_dropout(0.0);
                let heads = vec![maker.drawn(config.init(maker.device))];
                Op::Attention(Attention { heads, causal })
            });
            let map = biased(&[dim, dim], dim, true);
            (same(), map.and_then(|map| map.checked_mul(4)), make)
        }
        LayerSpec::Residual(_) => {
            let output = inner.last().map(|layer| layer.shape.output.clone());
            let output = output.ok_or(NO_LAYERS)?;
            if output != *input {
                return Err(format!(
                    "its layers turn this into {output}; `x + f(x)` needs equal shapes"
                ));
            }
            let params = LayerShape::param_sum(inner.iter().map(|layer| &layer.shape));
            let make = drawn(move |maker| {
                let layers = inner.into_iter().map(|layer| (layer.make)(maker));
                Op::Residual(layers.collect())
            });
            (same(), Some(params), make)
        }
        LayerSpec::Repeat { .. } => {
            return Err("it is a group; put its layers into the list".into());
        }
    };
    let output = SampleShape::float(dims);
    check_sample(&output, "its output")?;
    let param_count = params
        .filter(|&params| params <= MAX_ELEMENTS)
        .ok_or_else(|| too_large("the parameters"))?;
    Ok(Placed {
        shape: LayerShape {
            output,
            param_count,
        },
        make,
    })
}

/// A module whose parameters are drawn when it is made.
fn drawn<'a>(make: impl FnOnce(&mut Maker<'_>) -> Op + 'a) -> Make<'a> {
    Box::new(make)
}

/// A module without parameters.
fn plain<'a>(op: Op) -> Make<'a> {
    Box::new(move |_| op)
}

/// As many rows and columns on both sides.
fn around([rows, columns]: [usize; 2]) -> PaddingConfig2d {
    PaddingConfig2d::Explicit(rows, columns, rows, columns)
}
