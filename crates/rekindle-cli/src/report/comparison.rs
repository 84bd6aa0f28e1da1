//! The page of several runs.

use maud::html;
use rekindle_train::record::RunRecord;

use super::{cells, figure, page};
use crate::{failure::Failure, plot};

/// The page of runs, each with the name that tells it from the others.
pub fn comparison(runs: &[(String, &RunRecord)]) -> Result<String, Failure> {
    let costs = runs.iter().map(|(name, record)| {
        let plain = &record.plain;
        let share = 100.0 * record.measured_peak_bytes.0 as f64 / plain.peak_bytes.0 as f64;
        let slower = record.measured_step_s.0 / plain.step_s.0;
        vec![
            html! { (name) },
            cells::bytes_or_dash(record.budget_bytes),
            cells::bytes(record.predicted_peak_bytes),
            cells::bytes(record.measured_peak_bytes),
            html! { (format!("{share:.0}%")) },
            cells::seconds(record.predicted_step_s),
            cells::seconds(record.measured_step_s),
            html! { (format!("{slower:.2} x")) },
        ]
    });
    let cost_header = [
        "run",
        "budget",
        "predicted peak",
        "measured peak",
        "of plain",
        "predicted step",
        "measured step",
        "of plain",
    ];
    let kinds = runs.iter().map(|(name, record)| {
        vec![
            html! { (name) },
            html! { (record.name) },
            html! { (record.device) @if !record.hardware.is_empty() { " (" (record.hardware) ")" } },
            html! { (record.planner) },
            html! { (segments(record)) },
            html! { (record.steps) @if record.interrupted { " (not finished)" } },
            html! { (record.batch) },
            html! { (format!("{:.4}", record.last_loss)) },
        ]
    });
    let kind_header = [
        "run",
        "config",
        "device",
        "planner",
        "segments",
        "steps",
        "batch",
        "last loss",
    ];
    let caption = "Each run's traced step, from its own start: measured as a wide line, predicted as dashes on it.";
    let without: Vec<_> = runs
        .iter()
        .filter(|(_, record)| record.timeline.is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    let body = html! {
        h1 { (runs.len()) " runs" }
        h2 { "Predicted and measured" }
        (cells::table(&cost_header, 1, &costs.collect::<Vec<_>>()))
        p.soft { "Of plain: of what the same training takes without recomputing, measured or predicted by each run." }
        h2 { "Timelines" }
        @if let Some(picture) = figure(plot::comparison::picture(runs), caption)? { (picture) }
        @if !without.is_empty() {
            p.soft { "Without a timeline: " (without.join(", ")) "." }
        }
        h2 { "What they are" }
        (cells::table(&kind_header, 4, &kinds.collect::<Vec<_>>()))
        p.soft { (cells::prose("`rekindle report RUN_DIR` makes the full page of one run.")) }
    };
    Ok(page(&format!("{} runs - rekindle", runs.len()), &body))
}

fn segments(record: &RunRecord) -> String {
    match &record.segments {
        Some(segments) => segments.len().to_string(),
        None => "nested".into(),
    }
}
