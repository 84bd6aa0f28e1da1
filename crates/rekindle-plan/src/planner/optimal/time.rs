//! The number type of the table's times.

use std::ops::Add;

/// Seconds in the table: `f64`, or `f32` where the table would be too large.
pub(crate) trait Time: Copy + PartialOrd + Add<Output = Self> + Send + Sync {
    /// No schedule.
    const INFINITY: Self;

    fn from_seconds(seconds: f64) -> Self;

    /// The smaller of two times. A plain comparison, which the compiler turns into one vector instruction; times are
    /// never NaN.
    #[inline(always)]
    fn least(self, other: Self) -> Self {
        if other < self { other } else { self }
    }
}

impl Time for f64 {
    const INFINITY: f64 = f64::INFINITY;

    fn from_seconds(seconds: f64) -> f64 {
        seconds
    }
}

impl Time for f32 {
    const INFINITY: f32 = f32::INFINITY;

    fn from_seconds(seconds: f64) -> f32 {
        seconds as f32
    }
}
