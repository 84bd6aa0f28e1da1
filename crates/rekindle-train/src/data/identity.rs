//! Distinguishes a data set from another one of the same size.

use serde::Serialize;

/// Two data sets with the same identity, length and shapes have the same samples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Identity {
    /// Where samples come from.
    #[serde(flatten)]
    pub origin: Origin,
    /// Which of them they are, where they are a part of a shuffled data set.
    pub split: Option<Split>,
}

/// Where samples come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Origin {
    /// They were read.
    Read {
        /// CRC-32 of all bytes, as eight hexadecimal digits.
        contents: String,
    },
    /// They are drawn.
    Drawn {
        /// Of the generator.
        seed: u64,
        /// Token ids are drawn below this; `None` for numbers.
        vocab: Option<usize>,
    },
}

/// A part of a shuffled data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Split {
    /// Of the shuffle.
    pub seed: u64,
    /// Place of the first sample.
    pub first: usize,
}

impl Identity {
    /// The identity of samples made of these bytes.
    #[must_use]
    pub fn of_bytes<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut sum = crc32fast::Hasher::new();
        for bytes in pieces {
            sum.update(&(bytes.len() as u64).to_le_bytes());
            sum.update(bytes);
        }
        Self::whole(Origin::Read {
            contents: format!("{:08x}", sum.finalize()),
        })
    }

    /// The identity of all samples of an origin.
    #[must_use]
    pub fn whole(origin: Origin) -> Self {
        Self {
            origin,
            split: None,
        }
    }
}
