//! The page of a sweep.

use maud::{Markup, html};
use rekindle::meter::Count;

use super::{command, figure, page};
use crate::{
    failure::Failure,
    plot,
    started::Started,
    sweep::{SweepRecord, SweepRow, table::MARKS},
    table::{Cell, several},
};

/// The page.
pub fn sweep(record: &SweepRecord, started: Option<&Started>) -> Result<String, Failure> {
    let caption =
        "Each mark is a run, at its measured peak and step time. Left and below is better.";
    let body = html! {
        h1 { "Sweep of " (record.config) }
        p.soft {
            (record.rows.len()) " of " (record.rows_asked) " runs, " (several(record.steps, "step")) " each, batch " (record.batch)
            ", on " (record.device) " (" (record.device_name) ")"
        }
        (command(started))
        @if record.interrupted {
            p.bad { "This sweep is not finished: it was stopped, or still running, when this was recorded." }
        }
        (headline(record))
        h2 { "Frontier" }
        @match figure(plot::frontier::picture(record), caption)? {
            Some(picture) => (picture),
            None => p.soft { "There is none: no run of this sweep succeeded." },
        }
        h2 { "Runs" }
        (record.table(true).html())
        p.soft { (MARKS) }
        ul {
            @for row in &record.rows {
                @if let Some(message) = &row.message { li { (row.name()) ": " (message) } }
            }
        }
        h2 { "How the numbers were taken" }
        (methods(record))
    };
    Ok(page(
        &format!("Sweep of {} - rekindle", record.config),
        &body,
    ))
}

fn headline(record: &SweepRecord) -> Markup {
    let ran = || {
        record
            .rows
            .iter()
            .filter(|row| row.measured_peak_bytes.is_some())
    };
    let leanest = ran().min_by_key(|row| row.measured_peak_bytes);
    let fitting = ran().filter(|row| row.fits && row.measured_step_s.is_some());
    let step = |row: &&SweepRow| row.measured_step_s.map_or(f64::INFINITY, |step| step.0);
    let fastest = fitting.min_by(|a, b| step(a).total_cmp(&step(b)));
    html! {
        div.cards {
            @if let Some(plain) = &record.plain {
                div.card {
                    "plain run" b { (Cell::bytes(plain.peak_bytes)) }
                    span.soft { (Cell::seconds(plain.step_s)) " a step, " @if plain.measured { "measured" } @else { "predicted" } }
                }
            }
            @if let Some(row) = leanest { (card("smallest peak", row)) }
            @if let Some(limit) = record.limit_bytes {
                @if let Some(row) = fastest { (card("fastest within the limit", row)) }
                div.card { "limit" b { (Cell::bytes(limit)) } }
            }
        }
    }
}

fn card(title: &str, row: &SweepRow) -> Markup {
    html! {
        div.card {
            (title) b { (Cell::bytes(row.measured_peak_bytes)) }
            span.soft { (row.name()) ", " (Cell::seconds(row.measured_step_s)) " a step" }
        }
    }
}

fn methods(record: &SweepRecord) -> Markup {
    let counted = match (record.device.as_str(), record.count) {
        ("cpu", _) => "every live byte of the process",
        (_, Count::Reserved) => "what the pools reserve and the driver's context",
        (_, Count::InUse) => "live buffers",
    };
    html! {
        p {
            "Each run is a process of its own, with the same data and seed. Peaks count " (counted) ", over everything the \
             run did; step times are medians without the first step. Activations only are the most bytes in use in \
             forward, loss and backward, less what is in use as the forward starts."
        }
        p {
            @match record.limit_bytes {
                Some(limit) => { "A run fits if its measured peak is within the limit of " (Cell::bytes(limit)) "; " }
                None => { "Without a limit every run fits; " }
            }
            "a run that exceeds its own budget is marked EXCEEDED."
        }
    }
}
