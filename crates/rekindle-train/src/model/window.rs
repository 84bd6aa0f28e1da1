//! Sizes of sliding windows: convolution and pooling.
//!
//! A window of `k` values moves in steps of `s` over `n` values with `p` more on each side:
//! `out = floor((n + 2p - k) / s) + 1`.

use super::spec::Padding;

/// Number of positions of a window, or `None` if it does not fit. Kernel and stride are at least 1, and the size with its
/// padding is no more than [`MAX_ELEMENTS`](super::shape::MAX_ELEMENTS).
pub(super) fn positions(
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
) -> Option<usize> {
    let room = (size + 2 * padding).checked_sub(kernel)?;
    Some(room / stride + 1)
}

/// Average number, over its positions, of a window's values that lie on the input rather than in the padding.
///
/// 0 if [`positions`] returns `None`.
pub(super) fn mean_on_input(size: usize, kernel: usize, stride: usize, padding: usize) -> f64 {
    let Some(positions) = positions(size, kernel, stride, padding) else {
        return 0.0;
    };
    let on_input: usize = (0..kernel)
        .map(|offset| {
            // Positions o with 0 <= o * stride + offset - padding < size.
            let first = padding.saturating_sub(offset).div_ceil(stride);
            let end = (size + padding)
                .saturating_sub(offset)
                .div_ceil(stride)
                .min(positions);
            end.saturating_sub(first)
        })
        .sum();
    on_input as f64 / positions as f64
}

impl Padding {
    /// Rows above and below, columns left and right, for a kernel of this size.
    ///
    /// [`Padding::Same`] adds `(k - 1) / 2` on both sides. With an odd `k` that gives `ceil(n / s)` values for every
    /// stride `s`, the same size as in Keras. The *values* at `s > 1` are those of PyTorch's `padding=(k - 1) // 2`
    /// (PyTorch's own `padding="same"` does not allow strides): Keras pads as little as possible, with the odd zero
    /// after the last value, so its windows may start one value later.
    pub(super) fn each_side(self, kernel: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Same => kernel.map(|k| k.saturating_sub(1) / 2),
            Self::Explicit(padding) => padding,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_keeps_the_size_divided_by_the_stride_rounded_up() {
        for size in 1..20 {
            for stride in 1..5 {
                for kernel in [1, 3, 5, 7] {
                    let [padding, _] = Padding::Same.each_side([kernel, kernel]);
                    assert_eq!(
                        positions(size, kernel, stride, padding),
                        Some(size.div_ceil(stride))
                    );
                }
            }
        }
    }

    #[test]
    fn counts_the_places_where_a_window_lies_inside() {
        for (size, kernel, stride, padding) in (1..12).flat_map(|size| {
            (1..6).flat_map(move |kernel| {
                (1..4).flat_map(move |stride| {
                    (0..3).map(move |padding| (size, kernel, stride, padding))
                })
            })
        }) {
            let padded = size + 2 * padding;
            let inside = (0..padded)
                .step_by(stride)
                .filter(|start| start + kernel <= padded)
                .count();
            assert_eq!(
                positions(size, kernel, stride, padding),
                (inside > 0).then_some(inside)
            );
        }
    }

    #[test]
    fn averages_what_a_window_meets() {
        // 3 over 4 with one zero on each side: 2, 3, 3, 2.
        assert_eq!(mean_on_input(4, 3, 1, 1), 2.5);
        // Steps of 2: 2, 3.
        assert_eq!(mean_on_input(4, 3, 2, 1), 2.5);
        // 0, 0, 1, 1, 0, 0.
        assert_eq!(mean_on_input(2, 1, 1, 2), 1.0 / 3.0);
        assert_eq!(mean_on_input(9, 3, 1, 0), 3.0);
    }
}
