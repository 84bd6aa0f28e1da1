//! The page of several runs.

use maud::html;
use rekindle_train::record::RunRecord;

use super::{command, figure, page, prose};
use crate::{
    failure::Failure,
    plot,
    started::Started,
    table::{self, Cell, Table, percent},
};

/// The page of runs, each with the name that tells it from the others.
/// `started` has how each was started, if that is known.
pub fn comparison(
    runs: &[(String, &RunRecord)],
    started: &[Option<Started>],
) -> Result<String, Failure> {
    let caption = "Each run's traced step, from its own start: measured as a wide line, predicted as dashes on it.";
    let without: Vec<_> = runs
        .iter()
        .filter(|(_, record)| record.timeline.is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    let body = html! {
        h1 { (runs.len()) " runs" }
        h2 { "Predicted and measured" }
        (costs(runs).html())
        p.soft { "Of plain: relative to the same training without recomputing, as each run measured or predicted it." }
        h2 { "Timelines" }
        @if let Some(picture) = figure(plot::comparison::picture(runs), caption)? { (picture) }
        @if !without.is_empty() {
            p.soft { "Without a timeline: " (without.join(", ")) "." }
        }
        h2 { "Settings" }
        (kinds(runs).html())
        @for ((name, _), started) in runs.iter().zip(started) {
            @if started.is_some() { p { (name) ":" } (command(started.as_ref())) }
        }
        p.soft { (prose("`rekindle report RUN_DIR` makes the full page of one run.")) }
    };
    Ok(page(&format!("{} runs - rekindle", runs.len()), &body))
}

/// What each run took, predicted and measured.
fn costs(runs: &[(String, &RunRecord)]) -> Table {
    let header = [
        "run",
        "budget",
        "predicted peak",
        "measured peak",
        "of plain",
        "predicted step",
        "measured step",
        "of plain",
    ];
    let mut table = table::table(header, 1..8);
    for (name, record) in runs {
        let plain = &record.plain;
        let share = record.measured_peak_bytes.0 as f64 / plain.peak_bytes.0 as f64;
        let slower = record.measured_step_s.0 / plain.step_s.0;
        table.add_row([
            Cell::from(name),
            Cell::bytes(record.budget_bytes),
            Cell::bytes(record.predicted_peak_bytes),
            Cell::bytes(record.measured_peak_bytes),
            percent(share).into(),
            Cell::seconds(record.predicted_step_s),
            Cell::seconds(record.measured_step_s),
            format!("{slower:.2}x").into(),
        ]);
    }
    table
}

/// What each run is.
fn kinds(runs: &[(String, &RunRecord)]) -> Table {
    let header = [
        "run",
        "config",
        "device",
        "planner",
        "segments",
        "steps",
        "batch",
        "last loss",
    ];
    let mut table = table::table(header, 4..8);
    for (name, record) in runs {
        let segments = record.segments.as_ref();
        let unfinished = if record.interrupted {
            " (not finished)"
        } else {
            ""
        };
        table.add_row([
            name.clone(),
            record.name.clone(),
            match record.hardware.as_str() {
                "" => record.device.clone(),
                hardware => format!("{} ({hardware})", record.device),
            },
            record.planner.clone(),
            segments.map_or("nested".into(), |segments| segments.len().to_string()),
            format!("{}{unfinished}", record.steps),
            record.batch.to_string(),
            format!("{:.4}", record.last_loss),
        ]);
    }
    table
}
