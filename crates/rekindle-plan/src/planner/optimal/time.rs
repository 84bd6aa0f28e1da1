//! The number type of the table's times.

use std::ops::Add;

use pulp::Simd;

/// Seconds in the table: `f64`, or `f32` where the table would be too large.
pub(crate) trait Time: Copy + PartialOrd + Add<Output = Self> + Send + Sync {
    /// No schedule.
    const INFINITY: Self;

    fn from_seconds(seconds: f64) -> Self;

    /// `times[i] = min(times[i], time + right[i] + left[i])`, on whole vectors.
    fn relax_sums<S: Simd>(simd: S, times: &mut [Self], time: Self, rows: (&[Self], &[Self]));

    /// `times[i] = min(times[i], time + row[i])`, on whole vectors.
    fn relax_row<S: Simd>(simd: S, times: &mut [Self], time: Self, row: &[Self]);

    /// The smaller of two times. A plain comparison, which the compiler turns into one vector instruction; times are
    /// never NaN.
    #[inline(always)]
    fn least(self, other: Self) -> Self {
        if other < self { other } else { self }
    }
}

/// The two implementations differ by names alone.
macro_rules! time {
    ($float:ident, $as_simd:ident, $as_mut_simd:ident, $splat:ident, $add:ident, $min:ident) => {
        impl Time for $float {
            const INFINITY: $float = $float::INFINITY;

            fn from_seconds(seconds: f64) -> $float {
                seconds as $float
            }

            #[inline(always)]
            fn relax_sums<S: Simd>(
                simd: S,
                times: &mut [$float],
                time: $float,
                (right, left): (&[$float], &[$float]),
            ) {
                let time = simd.$splat(time);
                debug_assert!(S::$as_simd(times).1.is_empty(), "not whole vectors");
                let rows = S::$as_simd(right).0.iter().zip(S::$as_simd(left).0);
                for (best, (&right, &left)) in S::$as_mut_simd(times).0.iter_mut().zip(rows) {
                    *best = simd.$min(*best, simd.$add(simd.$add(time, right), left));
                }
            }

            #[inline(always)]
            fn relax_row<S: Simd>(simd: S, times: &mut [$float], time: $float, row: &[$float]) {
                let time = simd.$splat(time);
                debug_assert!(S::$as_simd(times).1.is_empty(), "not whole vectors");
                let row = S::$as_simd(row).0.iter();
                for (best, &row) in S::$as_mut_simd(times).0.iter_mut().zip(row) {
                    *best = simd.$min(*best, simd.$add(time, row));
                }
            }
        }
    };
}

time!(
    f64,
    as_simd_f64s,
    as_mut_simd_f64s,
    splat_f64s,
    add_f64s,
    min_f64s
);
time!(
    f32,
    as_simd_f32s,
    as_mut_simd_f32s,
    splat_f32s,
    add_f32s,
    min_f32s
);
