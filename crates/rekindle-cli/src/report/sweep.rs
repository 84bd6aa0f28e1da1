//! The page of a sweep.

use maud::{Markup, html};
use rekindle::meter::Count;
use rekindle_plan::Seconds;

use super::{cells, figure, page};
use crate::{
    failure::Failure,
    plot,
    sweep::{SweepRecord, SweepRow, table::MARKS},
    table::several,
};

/// The page.
pub fn sweep(record: &SweepRecord) -> Result<String, Failure> {
    let caption =
        "Each mark is a run, at its measured peak and step time. Left and below is better.";
    let body = html! {
        h1 { "Sweep of " (record.config) }
        p.soft {
            (record.rows.len()) " of " (record.rows_asked) " runs, " (several(record.steps, "step")) " each, batch " (record.batch)
            ", on " (record.device) " (" (record.device_name) ")"
        }
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
        (rows(record))
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
                    "plain run" b { (cells::bytes(plain.peak_bytes)) }
                    span.soft { (cells::seconds(plain.step_s)) " a step, " @if plain.measured { "measured" } @else { "predicted" } }
                }
            }
            @if let Some(row) = leanest { (card("smallest peak", row)) }
            @if let Some(limit) = record.limit_bytes {
                @if let Some(row) = fastest { (card("fastest within the limit", row)) }
                div.card { "limit" b { (cells::bytes(limit)) } }
            }
        }
    }
}

fn card(title: &str, row: &SweepRow) -> Markup {
    html! {
        div.card {
            (title) b { (cells::bytes_or_dash(row.measured_peak_bytes)) }
            span.soft { (row.name()) ", " (time(row.measured_step_s)) " a step" }
        }
    }
}

fn time(seconds: Option<Seconds>) -> Markup {
    match seconds {
        Some(seconds) => cells::seconds(seconds),
        None => html! { "-" },
    }
}

fn rows(record: &SweepRecord) -> Markup {
    let rows = record.rows.iter().map(|row| {
        let overhead = row
            .overhead
            .map_or("-".into(), |share| format!("{:+.0}%", 100.0 * share));
        let rate = row
            .samples_per_s
            .map_or("-".into(), |rate| format!("{rate:.1}"));
        vec![
            html! { (row.name()) @if row.pareto { " *" } @if row.chosen { " >" } },
            html! { (row.verdict()) },
            cells::bytes_or_dash(row.predicted_peak_bytes),
            cells::bytes_or_dash(row.measured_peak_bytes),
            cells::bytes_or_dash(row.activation_bytes),
            time(row.predicted_step_s),
            time(row.measured_step_s),
            html! { (overhead) },
            html! { (rate) },
        ]
    });
    let header = [
        "run",
        "fits",
        "predicted peak",
        "measured peak",
        "activations only",
        "predicted step",
        "measured step",
        "over plain",
        "samples per s",
    ];
    cells::table(&header, 2, &rows.collect::<Vec<_>>())
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
                Some(limit) => { "A run fits if its measured peak is within the limit of " (cells::bytes(limit)) "; " }
                None => { "Without a limit every run fits; " }
            }
            "one that exceeded its own budget is marked EXCEEDED."
        }
    }
}
