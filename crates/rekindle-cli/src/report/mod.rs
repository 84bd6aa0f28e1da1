//! A run or a sweep as a single page that loads no resources.
//!
//! | module | what it owns |
//! |---|---|
//! | [`run`] | the page of a run |
//! | [`trace`](mod@trace) | a run's timeline for trace viewers |
//!
//! Every number comes from a run's record, or from a sweep's, and its exact value is available in the page.

pub mod run;
pub mod trace;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::{
    plot::frontier,
    started::Started,
    sweep::{SweepRecord, record::MARK},
};

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

/// A picture, if there is one; else why not.
fn figure(svg: Option<String>, without: &str) -> Markup {
    html! {
        @match svg {
            Some(svg) => figure { div.scroll { (PreEscaped(svg)) } },
            None => p.soft { (without) },
        }
    }
}

/// The page of a sweep.
pub fn sweep(record: &SweepRecord, started: Option<&Started>) -> String {
    let body = html! {
        p.soft { (record.heading()) }
        @if record.interrupted {
            p.bad { "This sweep is not finished: " (record.rows.len()) " of " (record.rows_asked) " rows are done." }
        }
        h2 { "Frontier" }
        (figure(frontier::picture(record), "no run of this sweep succeeded"))
        h2 { "Runs" }
        (record.table().html())
        p.soft { (MARK) }
        @for message in record.messages() { p { (message) } }
    };
    page(&format!("Sweep of {}", record.config), started, &body)
}
