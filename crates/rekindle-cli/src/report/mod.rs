//! Runs and sweeps as one page that loads nothing.
//!
//! | module | what it owns |
//! |---|---|
//! | [`run`] | the page of one run |
//! | [`comparison`] | the page of several runs |
//! | [`sweep`] | the page of a sweep |
//! | [`trace`](mod@trace) | a run's timeline for trace viewers |
//! | [`cells`] | numbers and tables as a page has them |
//!
//! Every number comes from a [`RunRecord`], or a sweep's record of them, and carries its exact value behind what
//! is shown.

mod cells;
pub mod comparison;
pub mod run;
pub mod sweep;
pub mod trace;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use rekindle_train::record::RunRecord;

use crate::{failure::Failure, plot::chart::Drawn};

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
                     hold the pointer over one for all its digits."
                }
            }
        }
    };
    page.into_string()
}

/// What a run is called.
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
