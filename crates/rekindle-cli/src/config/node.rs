//! A typed view of a TOML document in which every value knows its place.
//!
//! serde's tagged enums lose the place of what they reject, so tables are read by hand: [`Section`] hands out values
//! by key and remembers which keys were asked for; [`Section::finish`] refuses all others.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::problem::{Problem, one_of, suggestion};

/// A value, its key and its place.
#[derive(Clone)]
pub struct Node<'a> {
    value: &'a DeValue<'a>,
    /// Place of the value, in bytes.
    pub span: Range<usize>,
    /// What messages call it.
    key: String,
}

/// A table that is being read.
pub struct Section<'a> {
    table: &'a DeTable<'a>,
    /// Place of the table, in bytes.
    pub span: Range<usize>,
    /// What messages call it: `[train]`, or `layer`.
    name: String,
    asked: Vec<&'static str>,
}

impl<'a> Section<'a> {
    /// A table under a name for messages.
    pub fn new(table: &'a DeTable<'a>, span: Range<usize>, name: impl Into<String>) -> Self {
        Self {
            table,
            span,
            name: name.into(),
            asked: Vec::new(),
        }
    }

    /// Gives the table a better name, once it is known.
    pub fn rename(&mut self, name: String) {
        self.name = name;
    }

    /// The value of a key, if it is there.
    pub fn get(&mut self, key: &'static str) -> Option<Node<'a>> {
        self.asked.push(key);
        self.table.get(key).map(|value| Node {
            value: value.get_ref(),
            span: value.span(),
            key: key.to_owned(),
        })
    }

    /// The value of a key that must be there.
    pub fn require(&mut self, key: &'static str) -> Result<Node<'a>, Problem> {
        self.get(key).ok_or_else(|| {
            let problem = Problem::new(
                format!("{} has no `{key}`", self.name),
                format!("`{key}` is missing here"),
                self.span.clone(),
            );
            let typed = self.table.keys().map(|key| key.get_ref().as_ref());
            let unread = typed.filter(|typed| !self.asked.contains(typed));
            match suggestion(key, unread) {
                Some(close) => problem.help(format!("is `{close}` meant to be `{key}`?")),
                None => problem,
            }
        })
    }

    /// The value of a key, read by `read`, or `default`.
    pub fn or<T>(
        &mut self,
        key: &'static str,
        default: T,
        read: impl FnOnce(&Node<'a>) -> Result<T, Problem>,
    ) -> Result<T, Problem> {
        self.get(key).map_or(Ok(default), |node| read(&node))
    }

    /// Refuses keys that nobody asked for; the first in the file is named.
    pub fn finish(self) -> Result<(), Problem> {
        let unknown = self
            .table
            .keys()
            .filter(|key| !self.asked.contains(&key.get_ref().as_ref()))
            .min_by_key(|key| key.span().start);
        let Some(key) = unknown else {
            return Ok(());
        };
        let problem = Problem::new(
            format!("unknown key `{}` in {}", key.get_ref(), self.name),
            "unknown key",
            key.span(),
        );
        Err(
            match suggestion(key.get_ref(), self.asked.iter().copied()) {
                Some(close) => problem.help(format!("did you mean `{close}`?")),
                None => problem.help(format!("known keys here: {}", self.asked.join(", "))),
            },
        )
    }
}

impl<'a> Node<'a> {
    /// A problem at this value.
    pub fn problem(&self, wanted: &str) -> Problem {
        Problem::new(
            format!("`{}` must be {wanted}", self.key),
            format!("not {}", self.shown()),
            self.span.clone(),
        )
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

    /// The text, if the value is one.
    pub fn as_text(&self) -> Option<&'a str> {
        match self.value {
            DeValue::String(text) => Some(text.as_ref()),
            _ => None,
        }
    }

    /// A text.
    pub fn text(&self) -> Result<&'a str, Problem> {
        self.as_text().ok_or_else(|| self.problem("text in quotes"))
    }

    /// One of some words.
    pub fn choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Result<T, Problem> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let text = self.text()?;
        choices
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, value)| *value)
            .ok_or_else(|| {
                let problem = self.problem(&one_of(&names));
                match suggestion(text, names) {
                    Some(close) => problem.help(format!("did you mean `{close}`?")),
                    None => problem,
                }
            })
    }

    /// A text that something parses, with that parser's message if it does not.
    pub fn parsed<T>(&self) -> Result<T, Problem>
    where
        T: std::str::FromStr<Err: std::fmt::Display>,
    {
        let text = self.text()?;
        text.parse().map_err(|error| {
            Problem::new(
                format!("`{}`: {error}", self.key),
                "this value",
                self.span.clone(),
            )
        })
    }

    /// True or false.
    pub fn flag(&self) -> Result<bool, Problem> {
        self.value
            .as_bool()
            .ok_or_else(|| self.problem("true or false"))
    }

    /// The list, if the value is one.
    pub fn as_list(&self) -> Option<Vec<Node<'a>>> {
        let list = self.value.as_array()?;
        let nodes = list.iter().map(|value| Node {
            value: value.get_ref(),
            span: value.span(),
            key: self.key.clone(),
        });
        Some(nodes.collect())
    }

    /// A list.
    pub fn list(&self) -> Result<Vec<Node<'a>>, Problem> {
        self.as_list().ok_or_else(|| self.problem("a list"))
    }

    /// A table; `name` is what messages call it.
    pub fn section(&self, name: impl Into<String>) -> Result<Section<'a>, Problem> {
        match self.value {
            DeValue::Table(table) => Ok(Section::new(table, self.span.clone(), name)),
            _ => Err(self.problem("a table")),
        }
    }

    /// Whether the value is a table.
    pub fn is_table(&self) -> bool {
        self.value.is_table()
    }

    /// A whole number from 0.
    pub fn whole(&self) -> Result<usize, Problem> {
        self.seed()?
            .try_into()
            .map_err(|_| self.problem("a smaller number"))
    }

    /// A whole number from 0, of 64 bits on every machine.
    pub fn seed(&self) -> Result<u64, Problem> {
        let DeValue::Integer(number) = self.value else {
            return Err(self.problem("a whole number"));
        };
        let wanted = if number.as_str().starts_with('-') {
            "a whole number that is not negative"
        } else {
            "a whole number of at most 64 bits"
        };
        u64::from_str_radix(number.as_str(), number.radix()).map_err(|_| self.problem(wanted))
    }

    /// A whole number from 1.
    pub fn size(&self) -> Result<usize, Problem> {
        match self.whole()? {
            0 => Err(self.problem("at least 1")),
            size => Ok(size),
        }
    }

    /// A number that passes a test; infinities and NaN never do.
    pub fn number(&self, wanted: &str, test: impl FnOnce(f64) -> bool) -> Result<f64, Problem> {
        let number = match self.value {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .ok()
                .map(|number| number as f64),
            DeValue::Float(number) => number.as_str().parse().ok(),
            _ => None,
        };
        number
            .filter(|number: &f64| number.is_finite() && test(*number))
            .ok_or_else(|| self.problem(wanted))
    }

    /// A number above 0.
    pub fn positive(&self) -> Result<f64, Problem> {
        self.number("a number above 0", |number| number > 0.0)
    }

    /// A number of at least 0.
    pub fn not_negative(&self) -> Result<f64, Problem> {
        self.number("a number of at least 0", |number| number >= 0.0)
    }

    /// `3` for `[3, 3]`, or the pair itself; each read by `read`.
    pub fn pair(
        &self,
        read: fn(&Node<'a>) -> Result<usize, Problem>,
    ) -> Result<[usize; 2], Problem> {
        match self.as_list() {
            None if self.value.is_integer() => read(self).map(|both| [both; 2]),
            None => Err(self.problem("a whole number or a pair of them")),
            Some(pair) => match &pair[..] {
                [first, second] => Ok([read(first)?, read(second)?]),
                _ => Err(self.problem("a whole number or a pair of them")),
            },
        }
    }

    /// A list of whole numbers from 1.
    pub fn sizes(&self) -> Result<Vec<usize>, Problem> {
        self.list()?.iter().map(Node::size).collect()
    }
}
