//! A value of a TOML document with its key and its position.

use std::ops::Range;

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::problem::Problem;

/// A value, its key and its place.
#[derive(Clone)]
pub struct Node<'a> {
    /// The value.
    pub value: &'a DeValue<'a>,
    /// Its place, in bytes.
    pub span: Range<usize>,
    /// The key that messages name; elements of a list have the list's.
    pub key: &'a str,
}

impl<'a> Node<'a> {
    /// The value of a key.
    pub fn new(key: &'a str, value: &'a Spanned<DeValue<'a>>) -> Self {
        Self {
            value: value.get_ref(),
            span: value.span(),
            key,
        }
    }

    /// A problem at this value.
    pub fn problem(&self, wanted: &str) -> Problem {
        Problem::new(
            format!("`{}` must be {wanted}", self.key),
            format!("not {}", self.shown()),
            self.span.clone(),
        )
    }

    /// A problem with what is in this list or table, which might be there.
    pub fn misfit(&self, wanted: &str) -> Problem {
        let message = format!("`{}` must be {wanted}", self.key);
        Problem::new(message, "does not fit", self.span.clone())
    }

    /// The value in a few words.
    fn shown(&self) -> String {
        match self.value {
            DeValue::String(text) => format!("{text:?}"),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(flag) => flag.to_string(),
            DeValue::Array(_) => "a list".into(),
            DeValue::Table(_) => "a table".into(),
            DeValue::Datetime(_) => "a date".into(),
        }
    }

    /// The elements of a list.
    pub fn elements(&self) -> impl Iterator<Item = Self> + use<'a> {
        let key = self.key;
        let list = self.value.as_array().into_iter().flatten();
        list.map(move |value| Node::new(key, value))
    }

    /// The value of a key of this table.
    pub fn get(&self, key: &'static str) -> Option<Self> {
        at(self.value.as_table()?, &[key])
    }

    /// The whole number, if it is one of at most 64 bits that is not negative.
    pub fn whole(&self) -> Option<u64> {
        match self.value {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        }
    }

    /// The number, as it is rounded to 64 bits.
    pub fn number(&self) -> Option<f64> {
        match self.value {
            DeValue::Integer(number) => {
                let number = i64::from_str_radix(number.as_str(), number.radix()).ok()?;
                Some(number as f64)
            }
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => None,
        }
    }
}

/// The value at a path of keys.
pub fn at<'a>(table: &'a DeTable<'a>, path: &[&'static str]) -> Option<Node<'a>> {
    let (key, rest) = path.split_first()?;
    let value = table.get(*key)?;
    match rest {
        [] => Some(Node::new(key, value)),
        rest => at(value.get_ref().as_table()?, rest),
    }
}
