//! Sizes as people write them: `512MiB`, `2GiB`, `1.5GB`, `300000B`, `60%`, `80%-of-device`.

use std::{fmt, str::FromStr};

use rekindle_plan::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A size: a number of bytes, or a percentage. It is shown as a user would type it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {
    /// Bytes.
    Bytes(Bytes),
    /// Percent of the plain step's peak: `60%`.
    Percent(f64),
    /// Percent of a device's memory: `80%-of-device`.
    OfDevice(f64),
}

/// The error of a text that is not a valid size, or of a share of what is not known: what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SizeError(String);

impl SizeError {
    fn zero() -> Self {
        Self("a size of 0 leaves no room for anything".into())
    }
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let text = text.trim();
        let not_a_size = || {
            SizeError(format!(
                "`{text}` is not a size: write for example 512MiB, 2GiB, 1.5GB, 300000B, 60% or 80%-of-device"
            ))
        };
        let of_plain = text
            .strip_suffix('%')
            .map(|number| (number, Self::Percent as fn(f64) -> Self));
        let of_device = text
            .strip_suffix("%-of-device")
            .map(|number| (number, Self::OfDevice as fn(f64) -> Self));
        if let Some((number, share)) = of_plain.or(of_device) {
            let percent: f64 = number.trim().parse().map_err(|_| not_a_size())?;
            return match percent {
                0.0 => Err(SizeError::zero()),
                percent if percent > 0.0 && percent <= 100.0 => Ok(share(percent)),
                percent if percent > 100.0 => Err(SizeError(format!(
                    "{percent}% is more than the whole: a share is above 0% and at most 100%"
                ))),
                _ => Err(not_a_size()),
            };
        }
        if text.parse::<f64>().is_ok_and(f64::is_finite) {
            return Err(SizeError(format!(
                "`{text}` has no unit: write `{text}MiB` (2^20 bytes), `{text}MB` (10^6), `{text}GiB`, `{text}B` or \
                 `{text}%`"
            )));
        }
        // `512M` is ambiguous between 10^6 and 2^20, so only full units are accepted.
        if !text.ends_with(['b', 'B']) {
            return Err(not_a_size());
        }
        // `512Mb` are bits to many.
        if text.ends_with('b') && text.contains(|letter: char| letter.is_ascii_uppercase()) {
            return Err(not_a_size());
        }
        let bytes: bytesize::ByteSize = text.parse().map_err(|_| not_a_size())?;
        Bytes(bytes.as_u64()).size()
    }
}

/// What a budget may be: a size as text, such as `"2GiB"` or `"60%"`, [`Bytes`], or a number of bytes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a budget",
    note = "write a size such as \"2GiB\" or \"60%\", `Bytes(n)`, or a number of bytes as `u64`"
)]
pub trait Budget {
    /// The size.
    ///
    /// # Errors
    ///
    /// If a text is not a size, or the size is zero.
    fn size(self) -> Result<Size, SizeError>;
}

impl Budget for &str {
    fn size(self) -> Result<Size, SizeError> {
        self.parse()
    }
}

impl Budget for String {
    fn size(self) -> Result<Size, SizeError> {
        self.parse()
    }
}

impl Budget for Bytes {
    fn size(self) -> Result<Size, SizeError> {
        match self {
            Self::ZERO => Err(SizeError::zero()),
            bytes => Ok(Size::Bytes(bytes)),
        }
    }
}

impl Budget for u64 {
    fn size(self) -> Result<Size, SizeError> {
        Bytes(self).size()
    }
}

impl Budget for Size {
    fn size(self) -> Result<Size, SizeError> {
        Ok(self)
    }
}

impl Size {
    /// The size in bytes, given the plain step's peak and the device's memory.
    ///
    /// # Errors
    ///
    /// For a percentage of what is not known.
    pub fn of(self, plain: Option<Bytes>, device: Option<Bytes>) -> Result<Bytes, SizeError> {
        let (percent, all, whole) = match self {
            Self::Bytes(bytes) => return Ok(bytes),
            Self::Percent(percent) => (percent, plain, "the plain step's peak"),
            Self::OfDevice(percent) => (percent, device, "the device's memory"),
        };
        let all = all.ok_or_else(|| {
            SizeError(format!(
                "{percent}% of {whole} is not known here; write a size such as 2GiB"
            ))
        })?;
        Ok(Bytes((all.0 as f64 * percent / 100.0) as u64))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 6] = [
            ("GiB", 1 << 30),
            ("GB", 1_000_000_000),
            ("MiB", 1 << 20),
            ("MB", 1_000_000),
            ("KiB", 1 << 10),
            ("kB", 1_000),
        ];
        match *self {
            // The largest unit that gives a whole number.
            Self::Bytes(Bytes(bytes)) => {
                let whole = UNITS.into_iter().find(|(_, unit)| bytes % unit == 0);
                let (unit, size) = whole.unwrap_or(("B", 1));
                write!(f, "{}{unit}", bytes / size)
            }
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::OfDevice(percent) => write!(f, "{percent}%-of-device"),
        }
    }
}
