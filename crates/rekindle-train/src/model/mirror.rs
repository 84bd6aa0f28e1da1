//! Weights of linear layers that make a deep stack start as a linear map ("looks-linear").
//!
//! For ReLU and for GELU, `f(u) - f(-u) = u`. So if a layer's preactivations come in pairs `(u, -u)`, and the next
//! layer weighs the two halves `f(u)` and `f(-u)` with opposite signs,
//!
//! ```text
//!     | M  -M |
//! W = |       | ,    [f(u), f(-u)] W = [u M, -u M],
//!     |-M   M |
//! ```
//!
//! then the whole stack starts as the product of its `M`. These are orthogonal here, so values, gradients and the
//! differences between samples keep their size through any number of layers. (With He's weights a GELU stack loses its
//! signal after about 20 layers; with ReLU the size stays, but all samples become similar.) The first layer of a stack
//! is `[M, -M]`. The units of a pair get different gradients, so they diverge from the first training step.
//!
//! Source: Balduzzi et al. 2017, "The shattered gradients problem", arXiv 1702.08591, section 4; for GELU the same
//! identity holds, since `gelu(u) = u P(u)` with `P(u) + P(-u) = 1`.
//!
//! `M` is a signed random permutation times [`REFLECTIONS`] random Householder reflections: exactly orthogonal, in
//! `O(n^2)` steps, computed on the host from numbers that the device draws, so that a seed gives the same weights in
//! every run. If `M` is not square, it is a part of a square matrix, scaled so that the mean square of a unit is
//! preserved.

use burn::tensor::{Device, Distribution, Tensor};

/// Number of reflections. With as many as units, the matrix is uniformly distributed among orthogonal matrices (Stewart
/// 1980); a few already mix each unit into all others.
const REFLECTIONS: usize = 16;

/// Row-major weight `[inputs, outputs]`, mirrored in its outputs, and in its inputs if `pairs_in`.
///
/// `outputs` must be even, and `inputs` too if `pairs_in`: an odd last one would stay 0.
pub(super) fn mirrored_weight(
    inputs: usize,
    outputs: usize,
    pairs_in: bool,
    device: &Device,
) -> Vec<f32> {
    let rows = if pairs_in { inputs / 2 } else { inputs };
    let columns = outputs / 2;
    let size = rows.max(columns);
    let draw = |count: usize| -> Vec<f32> {
        let tensor = Tensor::<1>::random([count], Distribution::Normal(0.0, 1.0), device);
        tensor.into_data().iter::<f32>().collect()
    };
    let order_by = draw(size);
    let mut order: Vec<usize> = (0..size).collect();
    order.sort_by(|&a, &b| order_by[a].total_cmp(&order_by[b]));
    let signs = draw(size);
    let normals = (0..size.min(REFLECTIONS)).map(|_| {
        let normal = draw(size);
        let squares: f32 = normal.iter().map(|x| x * x).sum();
        (normal, squares.max(f32::MIN_POSITIVE))
    });
    let normals: Vec<(Vec<f32>, f32)> = normals.collect();

    let scale = (columns as f32 / rows as f32).sqrt().max(1.0);
    let mut weight = vec![0.0; inputs * outputs];
    // A reflection changes each row independently, so the orthogonal matrix is not stored; for a tall part it would be
    // square.
    let mut values = vec![0.0_f32; size];
    for row in 0..rows {
        values.fill(0.0);
        values[order[row]] = 1.0_f32.copysign(signs[row]);
        for (normal, squares) in &normals {
            let along: f32 = values.iter().zip(normal).map(|(x, n)| x * n).sum();
            let twice = 2.0 * along / squares;
            let pairs = values.iter_mut().zip(normal);
            pairs.for_each(|(x, n)| *x -= twice * n);
        }
        for (column, value) in values[..columns].iter().enumerate() {
            let value = value * scale;
            weight[row * outputs + column] = value;
            weight[row * outputs + columns + column] = -value;
            if pairs_in {
                weight[(rows + row) * outputs + column] = -value;
                weight[(rows + row) * outputs + columns + column] = value;
            }
        }
    }
    weight
}
