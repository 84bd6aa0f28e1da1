//! Checks of sizes and shapes that kinds of layers share.

use super::{
    shape::MAX_ELEMENTS,
    spec::{ElementKind, PoolSpec, SampleShape},
    window::positions,
};

const MAX_RANK: usize = 3;

/// The problem with a model or residual that is empty.
pub(super) const NO_LAYERS: &str = "it has no layers; give it at least one";

/// Checks that a sample has one to three dimensions, token ids one, none of them 0, and not too many values.
pub(super) fn check_sample(shape: &SampleShape, what: &'static str) -> Result<(), String> {
    if shape.kind == ElementKind::Token && shape.dims.len() != 1 {
        return Err(
            "it needs token ids in one dimension, without the batch; give the data a `shape` of one size".into(),
        );
    }
    if shape.dims.is_empty() || shape.dims.len() > MAX_RANK {
        return Err(
            "it needs one to three dimensions, without the batch: at most [channels, height, width]".into(),
        );
    }
    not_zero(what, &shape.dims)?;
    if shape.elements() > MAX_ELEMENTS {
        Err(too_large("one sample"))
    } else {
        Ok(())
    }
}

pub(super) fn pooled(pool: &PoolSpec, input: &SampleShape) -> Result<Vec<usize>, String> {
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

pub(super) fn image(input: &SampleShape) -> Result<[usize; 3], String> {
    <[usize; 3]>::try_from(input.dims.as_slice()).map_err(|_| {
        "it needs [channels, height, width]; take out the flatten, or use data of such a shape"
            .into()
    })
}

pub(super) fn vectors(input: &SampleShape) -> Result<[usize; 2], String> {
    <[usize; 2]>::try_from(input.dims.as_slice()).map_err(|_| {
        "it needs [length, dim]; put an embedding of a row of token ids before it".into()
    })
}

pub(super) fn windows(
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

pub(super) fn with_last(dims: &[usize], last: usize) -> Vec<usize> {
    let mut dims = dims.to_vec();
    if let Some(dim) = dims.last_mut() {
        *dim = last;
    }
    dims
}

pub(super) fn product(sizes: &[usize]) -> Option<u64> {
    sizes
        .iter()
        .try_fold(1_u64, |product, &size| product.checked_mul(size as u64))
}

pub(super) fn not_zero(what: &'static str, sizes: &[usize]) -> Result<(), String> {
    if sizes.contains(&0) {
        Err(format!("`{what}` is 0; it must be at least 1"))
    } else {
        Ok(())
    }
}

pub(super) fn too_large(what: &'static str) -> String {
    format!("{what} would hold more than {MAX_ELEMENTS} values; use smaller sizes")
}
