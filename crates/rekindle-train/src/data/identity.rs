//! Distinguishes a data set from another one of the same size.

use serde::Serialize;
use serde_json::{Map, Value, json};

/// Two data sets with the same identity, length and shapes have the same samples.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Identity(Map<String, Value>);

impl Identity {
    /// The identity of samples made of these bytes: their CRC-32.
    #[must_use]
    pub fn of_bytes<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut sum = crc32fast::Hasher::new();
        for bytes in pieces {
            sum.update(&(bytes.len() as u64).to_le_bytes());
            sum.update(bytes);
        }
        Self::of("contents", json!(format!("{:08x}", sum.finalize())))
    }

    /// The identity of samples that are drawn: the seed, and the number of token ids where they are such.
    #[must_use]
    pub fn drawn(seed: u64, vocab: Option<usize>) -> Self {
        Self::of("seed", json!(seed)).with("vocab", json!(vocab))
    }

    /// The identity of a part of them, which begins at a place of a shuffle.
    #[must_use]
    pub fn part(self, seed: u64, first: usize) -> Self {
        self.with("split", json!({ "seed": seed, "first": first }))
    }

    fn of(name: &str, value: Value) -> Self {
        Self(Map::new()).with(name, value)
    }

    fn with(mut self, name: &str, value: Value) -> Self {
        self.0.insert(name.to_owned(), value);
        self
    }
}
