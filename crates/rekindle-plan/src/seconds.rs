//! A time in seconds.

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};

/// A time in seconds. A validated [`Chain`](crate::Chain) holds only finite times of zero or more.
///
/// [`Display`](fmt::Display) picks the unit ("1.42 s", "3.1 ms", "12 µs"); serde writes the plain number.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
#[derive(derive_more::Add, derive_more::AddAssign, derive_more::Sub, derive_more::Mul)]
pub struct Seconds(pub f64);

impl Seconds {
    /// No time.
    pub const ZERO: Seconds = Seconds(0.0);
}

impl Sum for Seconds {
    fn sum<I: Iterator<Item = Seconds>>(times: I) -> Seconds {
        times.fold(Seconds::ZERO, Add::add)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.abs();
        // The limits are where the smaller unit would round up to 1000.
        let text = if size == 0.0 || size >= 0.99995 || !size.is_finite() {
            format!("{:.2} s", self.0)
        } else if size >= 0.999_5e-3 {
            format!("{:.1} ms", self.0 * 1e3)
        } else if size >= 0.999_5e-6 {
            format!("{:.0} µs", self.0 * 1e6)
        } else {
            format!("{:.0} ns", self.0 * 1e9)
        };
        f.pad(&text)
    }
}
