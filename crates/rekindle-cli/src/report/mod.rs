//! A run or a sweep as a single page that loads no resources.
//!
//! | module | what it owns |
//! |---|---|
//! | [`run`] | the page of a run |
//! | [`sweep`] | the page of a sweep |
//! | [`trace`](mod@trace) | a run's timeline for trace viewers |
//!
//! Every number comes from a run's record, or from a sweep's, and its exact value is available in the page.

pub mod run;
pub mod sweep;
pub mod trace;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::{failure::Failure, plot::Drawn, started::Started};

/// A whole page: its title, what was typed, when, and by which version, and the rest.
fn page(title: &str, started: Option<&Started>, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " - rekindle" }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                h1 { (title) }
                @if let Some(started) = started {
                    p.soft {
                        code { (started.line()) } ", " (started.started_at) ", rekindle " (started.version)
                    }
                }
                (body)
                footer { "Sizes are binary: 1 MiB is 1,048,576 bytes. Hover over a size to see all its digits." }
            }
        }
    };
    page.into_string()
}

/// A picture, if it can be drawn; else why not.
fn figure(drawn: Option<Drawn<String>>, without: &str) -> Result<Markup, Failure> {
    let svg = drawn.transpose().map_err(Failure::other)?;
    Ok(html! {
        @match svg {
            Some(svg) => figure { div.scroll { (PreEscaped(svg)) } },
            None => p.soft { (without) },
        }
    })
}
