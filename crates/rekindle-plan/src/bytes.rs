//! A number of bytes.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use serde::Serialize;
use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};

/// A number of bytes. Sums stop at `u64::MAX` and differences at zero: no arithmetic on sizes can wrap or panic.
///
/// [`Display`](fmt::Display) prints binary units for people ("130.2 MiB"); serde writes the plain number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// Reads a whole number, which may be written with a point or an exponent.
impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct Whole;
        impl Visitor<'_> for Whole {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of bytes from 0 to 2^60")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Bytes, E> {
                Ok(Bytes(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Bytes, E> {
                let whole = u64::try_from(value).map(Bytes);
                whole.map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Bytes, E> {
                // Up to 2^53 a float names every whole number exactly.
                match value.fract() == 0.0 && (0.0..=2_f64.powi(53)).contains(&value) {
                    true => Ok(Bytes(value as u64)),
                    false => Err(E::invalid_value(Unexpected::Float(value), &self)),
                }
            }
        }
        deserializer.deserialize_u64(Whole)
    }
}

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);
    /// The largest number of bytes.
    pub const MAX: Bytes = Bytes(u64::MAX);

    /// Whether this is zero.
    pub(crate) fn is_zero(&self) -> bool {
        *self == Bytes::ZERO
    }

    /// As a signed number, for differences.
    pub(crate) fn signed(self) -> i64 {
        self.0.min(i64::MAX as u64) as i64
    }
}

impl Add for Bytes {
    type Output = Bytes;

    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Bytes;

    fn sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Bytes) {
        *self = *self - other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(sizes: I) -> Bytes {
        sizes.fold(Bytes::ZERO, Add::add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].into_iter();
        let mut value = self.0 as f64;
        let mut text = format!("{value} B");
        for (unit, decimals) in units.zip([1, 1, 2, 2, 2, 2]) {
            // 1023.97 KiB would print as 1024.0 KiB: use the next unit instead.
            if value < 1024.0 && !text.starts_with("1024") {
                break;
            }
            value /= 1024.0;
            text = format!("{value:.decimals$} {unit}");
        }
        f.pad(&text)
    }
}
