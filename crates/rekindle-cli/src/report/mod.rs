//! Runs and sweeps as a single page that loads no resources.
//!
//! | module | what it owns |
//! |---|---|
//! | [`run`] | the page of one run |
//! | [`comparison`] | the page of several runs |
//! | [`sweep`] | the page of a sweep |
//! | [`trace`](mod@trace) | a run's timeline for trace viewers |
//!
//! Every number comes from a [`RunRecord`], or from a sweep's record, and its exact value is available in the page.

pub mod comparison;
pub mod run;
pub mod sweep;
pub mod trace;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use rekindle_train::record::RunRecord;

use crate::{failure::Failure, plot::chart::Drawn, started::Started};

/// A whole page.
fn page(title: &str, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                (body)
                footer {
                    "Made by rekindle " (env!("CARGO_PKG_VERSION")) ". Sizes are binary: 1 MiB is 1,048,576 bytes; \
                     hover over a size to see all its digits."
                }
            }
        }
    };
    page.into_string()
}

/// What was typed, when, and by which version.
fn command(started: Option<&Started>) -> Markup {
    html! {
        @if let Some(started) = started {
            p.soft {
                code { (started.line()) }
                @if let Some((at, version)) = started.at() { ", " (at) ", rekindle " (version) }
            }
        }
    }
}

/// The name of a run.
fn name(record: &RunRecord) -> &str {
    match record.name.as_str() {
        "" => "A run",
        name => name,
    }
}

/// A picture with its caption, if it can be drawn.
fn figure(drawn: Option<Drawn<String>>, caption: &str) -> Result<Option<Markup>, Failure> {
    let svg = drawn.transpose().map_err(Failure::other)?;
    Ok(svg.map(|svg| {
        html! {
            figure {
                div.scroll { (PreEscaped(svg)) }
                @if !caption.is_empty() { figcaption { (caption) } }
            }
        }
    }))
}

/// Words for people, with `code` between backticks.
fn prose(text: &str) -> Markup {
    html! {
        @for (index, part) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn commands_in_prose_are_code() {
        let words = super::prose("`--compare` measures <it>").into_string();
        assert_eq!(words, "<code>--compare</code> measures &lt;it&gt;");
    }
}
