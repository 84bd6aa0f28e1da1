//! A run or a sweep as a single page that loads no resources.
//!
//! Every number comes from a run's record, or from a sweep's, and its exact value is available in the page. [`trace`](mod@trace)
//! has a run's timeline for trace viewers.

pub mod trace;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use rekindle_train::record::RunRecord;

use crate::{
    failure::Failure,
    plot,
    started::Started,
    summary,
    sweep::{SweepRecord, record::MARK},
};

/// A whole page: its title, what was typed, when, and by which version, what it does now, and the rest. While it does something,
/// browsers load it again.
fn page(title: &str, started: Option<&Started>, now: Option<&str>, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " - rekindle" }
                @if now.is_some() { meta http-equiv="refresh" content="2"; }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                h1 { (title) }
                @if let Some(started) = started {
                    p.soft {
                        code { (started.line()) } ", " (started.started_at) ", rekindle " (started.version)
                    }
                }
                @if let Some(now) = now { p { (now) } }
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
            Some(svg) => figure { (PreEscaped(svg)) },
            None => p.soft { (without) },
        }
    }
}

/// The page of a run.
pub fn run(
    record: &RunRecord,
    started: Option<&Started>,
    now: Option<&str>,
) -> Result<String, Failure> {
    let body = html! {
        p.soft {
            (record.steps) " of " (record.settings.steps) " steps, batch " (record.batch) ", on " (record.device)
            " (" (record.hardware) "), planner " code { (record.plan.planner) }
        }
        @if record.interrupted && now.is_none() {
            p.bad { "This run is not finished: it was stopped, or still running, after step " (record.steps) "." }
        }
        @if let Some(step) = record.resumed_at {
            p.soft { "It was resumed after step " (step) "; peaks and phases are those since then." }
        }
        h2 { "Predicted and measured" }
        p { (summary::saved(record)) }
        p { (summary::losses(record)) }
        (summary::predictions(record).html())
        @for sentence in summary::beside(record) { p.soft { (sentence) } }
        @if let Some(growth) = &record.growth { p.bad { "Memory grows: " (growth) "." } }
        h2 { "Timeline" }
        (figure(plot::timeline::picture(record), NO_TIMELINE))
        h2 { "Memory by phase" }
        (summary::phases(record, true).html())
        h2 { "Stages" }
        (summary::stages(&record.stages).html())
        h2 { "Settings" }
        pre { (serde_json::to_string_pretty(&record.settings).map_err(Failure::other)?) }
    };
    Ok(page(&record.name, started, now, &body))
}

/// The page of a run that has no record yet.
pub fn begun(started: &Started, now: Option<&str>) -> String {
    page(&started.config, Some(started), now, &html! {})
}

/// Why a run may have no timeline.
pub const NO_TIMELINE: &str =
    "no timeline: this run ended before its fourth step, which is traced, or had no room for it";

/// The page of a sweep.
pub fn sweep(record: &SweepRecord, started: Option<&Started>) -> String {
    let body = html! {
        p.soft { (record.heading()) }
        @if record.interrupted {
            p.bad { "This sweep is not finished: " (record.rows.len()) " of " (record.rows_asked) " rows are done." }
        }
        h2 { "Frontier" }
        (figure(plot::frontier::picture(record), "no run of this sweep succeeded"))
        h2 { "Runs" }
        (record.table().html())
        p.soft { (MARK) }
        @for message in record.messages() { p { (message) } }
    };
    page(&format!("Sweep of {}", record.config), started, None, &body)
}
