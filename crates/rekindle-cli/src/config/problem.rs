//! Problems in a config, with their positions.
//!
//! serde's errors bring theirs. The position of a value that serde takes and [`validate`](super::ConfigFile::validate)
//! refuses is looked up in the text, where there is such a problem.

use std::{fmt::Display, ops::Range};

use rekindle_train::model::spec::LayerSpec;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::failure::Failure;

/// What a name is told that stands without its keys.
const ALONE: &str = "the name alone is not enough: it needs a value, `{ name = .. }`";

/// A problem with the value of a dotted key of a config. An item of a list has its index as key.
pub fn at(text: &str, key: &str, message: impl Display) -> Failure {
    Failure {
        span: Some(place(text, key)),
        ..Failure::usage(message)
    }
}

/// What serde or TOML refuses. Of a long list of what it expects, the word that was probably meant is named.
pub fn of_toml(error: &toml::de::Error, text: &str) -> Failure {
    // serde names Rust's types, and TOML counts elements.
    let plain = [
        (
            "wanted exactly 1 element, more than 1 element",
            "more than one key, but this table has exactly one",
        ),
        (
            "wanted exactly 1 element, found 0 elements",
            "no key, but this table has exactly one",
        ),
        ("wanted string or table", "expected a name or a table"),
        ("invalid type: unit variant, expected struct variant", ALONE),
        (
            "invalid type: unit variant, expected newtype variant",
            ALONE,
        ),
        (
            "expected empty table",
            "it has no keys: its name alone is enough",
        ),
        ("expected usize", "expected a whole number"),
        ("expected u64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("a sequence", "a list"),
    ];
    let message = plain
        .into_iter()
        .fold(error.message().to_owned(), |message, (from, to)| {
            message.replace(from, to)
        });
    let span = error.span().unwrap_or(0..1);
    let span = span.start.min(text.len())..span.end.min(text.len());
    let meant = |typed: &str, known: &str| {
        let words = known.split([' ', ',']);
        let word = suggestion(typed, words.map(|word| word.trim_matches(['`', '"'])))?;
        Some(format!("did you mean `{word}`?"))
    };
    let lists = [
        ("unknown field ", ", expected ", "key"),
        ("unknown variant ", ", expected ", "name"),
        ("unexpected keys in table: ", ", available keys: ", "key"),
    ];
    let list = lists.into_iter().find_map(|(start, between, what)| {
        let (unknown, known) = message.strip_prefix(start)?.split_once(between)?;
        Some((unknown.trim_matches('`'), known, what))
    });
    let (message, help) = match list {
        Some((unknown, known, what)) => {
            let all = || format!("expected {known}; docs/config.md describes them");
            let help = meant(unknown, known).unwrap_or_else(all);
            (format!("unknown {what} `{unknown}`"), Some(help))
        }
        None => {
            let typed = text.get(span.clone()).unwrap_or_default();
            let help = meant(typed.trim_matches(['"', '\'']), &message);
            let help = help.filter(|_| error.message().starts_with("expected "));
            (message, help)
        }
    };
    let problem = Failure {
        span: Some(span),
        ..Failure::usage(message)
    };
    match help {
        Some(help) => problem.help(help),
        None => problem,
    }
}

/// The word in `known` of which `word` is probably a typing error.
fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| {
            let slip = word.len() > 2 && strsim::osa_distance(word, candidate) == 1;
            let likeness = strsim::jaro_winkler(word, candidate);
            (if slip { 1.0 } else { likeness }, candidate)
        })
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

/// Where the value of a dotted key stands; the text's start where it is not there.
fn place(text: &str, key: &str) -> Range<usize> {
    fn inner<'a>(value: &'a Spanned<DeValue<'a>>, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        match value.get_ref() {
            DeValue::Table(table) => table.get(key),
            DeValue::Array(list) => list.get(key.parse::<usize>().ok()?),
            _ => None,
        }
    }
    let document = DeTable::parse(text).ok();
    let place = document.as_ref().and_then(|document| {
        let mut keys = key.split('.');
        let first = document.get_ref().get(keys.next()?)?;
        keys.try_fold(first, inner).map(Spanned::span)
    });
    place.unwrap_or(0..text.len().min(1))
}

/// The key of the layer whose indices in the unfolded list, and in each residual around it, are `path`.
pub fn layer_key(written: &[LayerSpec], path: &[usize]) -> String {
    let (mut key, mut list) = ("model.layers".to_owned(), written);
    for &index in path {
        let Some((item, layer)) = nth(list, &mut { index }) else {
            break;
        };
        key += &item;
        if let LayerSpec::Residual(layers) = layer {
            (key, list) = (key + ".residual", layers);
        }
    }
    key.trim_end_matches(".residual").to_owned()
}

/// The layer of a list that stands at `index` when its groups are unfolded; else `index` is lowered by their number.
fn nth<'a>(list: &'a [LayerSpec], index: &mut usize) -> Option<(String, &'a LayerSpec)> {
    for (item, layer) in list.iter().enumerate() {
        match layer {
            LayerSpec::Repeat { times, layers } => {
                let mut turns = (0..*times).filter_map(|_| nth(layers, index));
                if let Some((inner, layer)) = turns.next() {
                    return Some((format!(".{item}.repeat.layers{inner}"), layer));
                }
            }
            layer if *index == 0 => return Some((format!(".{item}"), layer)),
            _ => *index -= 1,
        }
    }
    None
}
