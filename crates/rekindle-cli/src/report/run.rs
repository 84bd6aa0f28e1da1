//! The page of one run.

use maud::{Markup, html};
use rekindle::meter::Count;
use rekindle_train::{
    model::spec::{LayerSpec, ModelSpec},
    record::{EvalRecord, RunRecord, StageRecord, StepRecord},
    settings::TrainSettings,
};

use super::{command, figure, page, prose};
use crate::{
    estimate::describe,
    failure::Failure,
    plot,
    started::Started,
    summary,
    table::{self, Cell, Table, several, thousands},
};

/// The page.
pub fn run(
    record: &RunRecord,
    steps: &[StepRecord],
    evaluations: &[EvalRecord],
    started: Option<&Started>,
) -> Result<String, Failure> {
    let title = super::name(record);
    let body = html! {
        h1 { (title) }
        p.soft {
            (record.steps) " of " (record.settings.steps) " steps, batch " (record.batch) ", on " (record.device)
            @if !record.hardware.is_empty() { " (" (record.hardware) ")" }
        }
        (command(started))
        (remarks(record))
        (headline(record))
        h2 { "Predicted and measured" }
        (summary::predictions(record).html())
        p { (prose(&summary::saved(record))) }
        (timeline(record)?)
        h2 { "Memory by phase" }
        (summary::phases::table(record, true).html())
        @if let Some(growth) = &record.growth { p.bad { (prose(&format!("Memory grows: {growth}."))) } }
        h2 { "Plan" }
        (plan(record))
        h2 { "Training" }
        @if let Some(curve) = figure(plot::curve::picture(steps, evaluations), "")? { (curve) }
        (losses(record, evaluations))
        h2 { "Config" }
        (config(record))
        h2 { "How the numbers were taken" }
        (methods(record))
    };
    Ok(page(&format!("{title} - rekindle"), &body))
}

/// Remarks on unusual events of the run.
fn remarks(record: &RunRecord) -> Markup {
    html! {
        @if record.interrupted {
            p.bad {
                "This run is not finished: it was stopped, or still running, when this was recorded after step "
                (record.steps) "."
            }
        }
        @if let Some(step) = record.resumed_at {
            p.soft { "It was resumed after step " (step) "; peaks and phases are those since then." }
        }
    }
}

fn headline(record: &RunRecord) -> Markup {
    let peak = record.measured_peak_bytes;
    let share = 100.0 * peak.0 as f64 / record.plain.peak_bytes.0 as f64;
    let slower = record.measured_step_s.0 / record.plain.step_s.0;
    let plain = if record.plain.measured {
        "measured"
    } else {
        "predicted"
    };
    html! {
        div.cards {
            @if let Some(first) = summary::peaks(record).first() { div.card { (first.name) b { (Cell::bytes(peak)) } } }
            div.card { "of the plain run's" b { (format!("{share:.0}%")) } span.soft { (Cell::bytes(record.plain.peak_bytes)) ", " (plain) } }
            div.card { "step time" b { (Cell::seconds(record.measured_step_s)) } span.soft { (format!("{slower:.2}")) " x the plain run's, " (plain) } }
            @if let Some(budget) = record.budget_bytes {
                div.card {
                    "budget" b { (Cell::bytes(budget)) }
                    @if peak <= budget { span.good { "met, " (Cell::bytes(budget - peak)) " to spare" } }
                    @else { span.bad { "exceeded by " (Cell::bytes(peak - budget)) } }
                }
            }
        }
    }
}

fn timeline(record: &RunRecord) -> Result<Markup, Failure> {
    let caption = "Each action is as high as its peak. Areas are the prediction, the line is the measurement.";
    let picture = figure(plot::timeline::picture(record), caption)?;
    Ok(html! {
        h2 { "Timeline" }
        @match (picture, &record.timeline) {
            (Some(picture), Some(timeline)) => {
                (picture)
                @if let Some(highest) = timeline.predicted_peak() {
                    p {
                        "The prediction is highest in " (plot::what_runs(record, highest)) ": "
                        (Cell::bytes(highest.predicted_at_peak.total())) "; the highest measurement of this step is "
                        (Cell::bytes(timeline.measured_peak())) "."
                    }
                }
            }
            _ => p.soft {
                "There is none: a run traces its fourth step, or its last one if it is shorter, and this run stopped before."
            }
        }
    })
}

fn plan(record: &RunRecord) -> Markup {
    let forwards: usize = record.stages.iter().map(|stage| stage.forwards).sum();
    let again = forwards - record.stages.len().min(forwards);
    let shape = match &record.segments {
        Some(segments) if segments.len() > 1 => format!("{} segments", segments.len()),
        Some(_) => "everything is kept".into(),
        None => "nested recomputes".into(),
    };
    html! {
        p {
            "Planner " code { (record.planner) } ": " (shape) ", " (record.stages.len()) " stages; "
            (again) " of " (forwards) " forwards are recomputes."
        }
        @if let Some(segments) = record.segments.as_ref().filter(|segments| segments.len() > 1) {
            p {
                "Segments by their stages: "
                @for (index, [first, last]) in segments.iter().enumerate() {
                    @if index > 0 { ", " } (first) "-" (last)
                }
                ". The activation between two segments is kept; the last segment is not recomputed."
            }
        }
        (stages(&record.stages).html())
    }
}

/// Stages; equal consecutive stages share a row.
fn stages(stages: &[StageRecord]) -> Table {
    let alike = |a: &StageRecord, b: &StageRecord| {
        (a.forwards, a.output_bytes, a.saved_bytes, a.param_bytes)
            == (b.forwards, b.output_bytes, b.saved_bytes, b.param_bytes)
    };
    let header = [
        "stage",
        "name",
        "forwards",
        "output",
        "kept for backward",
        "parameters",
    ];
    let mut table = table::table(header, 2..6);
    let mut first = 0;
    for group in stages.chunk_by(alike) {
        let (stage, last) = (&group[0], first + group.len() - 1);
        let (numbers, name) = match group {
            [one] => (first.to_string(), one.name.clone()),
            [one, .., end] => (
                format!("{first}-{last}"),
                format!("{} to {}", one.name, end.name),
            ),
            [] => continue,
        };
        table.add_row([
            Cell::from(numbers),
            name.into(),
            stage.forwards.into(),
            Cell::bytes(stage.output_bytes),
            Cell::bytes(stage.saved_bytes),
            Cell::bytes(stage.param_bytes),
        ]);
        first = last + 1;
    }
    table
}

fn losses(record: &RunRecord, evaluations: &[EvalRecord]) -> Markup {
    let mut table = table::table(
        ["after step", "samples", "evaluation loss", "accuracy"],
        0..4,
    );
    for one in evaluations {
        table.add_row([
            Cell::from(one.step),
            one.samples.into(),
            format!("{:.4}", one.loss).into(),
            Cell::text(one.accuracy.map(|share| format!("{:.1}%", 100.0 * share))),
        ]);
    }
    html! {
        p {
            "Loss " (format!("{:.4}", record.first_loss)) " in step 1, " (format!("{:.4}", record.last_loss))
            " in step " (record.steps) "."
        }
        @if !evaluations.is_empty() { (table.html()) }
    }
}

fn config(record: &RunRecord) -> Markup {
    html! {
        p { "Input " code { (record.model.input) } ", " (thousands(record.param_count)) " trainable values, layers:" }
        p { code { (layers(&record.model)) } }
        (settings(&record.settings).html())
    }
}

/// The layers in order; repeated ones are listed once.
fn layers(model: &ModelSpec) -> String {
    let mut names: Vec<(String, usize)> = Vec::new();
    for layer in &model.layers {
        let name = layer_name(layer);
        match names.last_mut() {
            Some((last, times)) if *last == name => *times += 1,
            _ => names.push((name, 1)),
        }
    }
    let texts = names.into_iter().map(|(name, times)| match times {
        1 => name,
        _ => format!("{times} x {name}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

fn layer_name(layer: &LayerSpec) -> String {
    match layer {
        LayerSpec::Residual(layers) => {
            let inner: Vec<_> = layers.iter().map(layer_name).collect();
            format!("residual({})", inner.join(", "))
        }
        other => describe(other),
    }
}

/// Settings by their names in configs.
fn settings(settings: &TrainSettings) -> Table {
    let values = serde_json::to_value(settings).unwrap_or_default();
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => String::new(),
        serde_json::Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| match value.as_str() {
                Some(text) if key == "type" => text.to_owned(),
                _ => format!("{key} {value}"),
            });
            fields.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    };
    let mut table = table::table(["setting", "value"], 2..2);
    for (key, value) in values.as_object().into_iter().flatten() {
        table.add_row([key.clone(), text(value)]);
    }
    table
}

fn methods(record: &RunRecord) -> Markup {
    let on_gpu = record.pools.is_some();
    html! {
        @if on_gpu {
            p {
                "In use: live buffers in the device's pools, seen between actions. Reserved: what the pools took of the \
                 device, exact at every moment"
                @match record.count {
                    Count::Reserved => ", with the driver's context. The budget bounds what is reserved.",
                    Count::InUse => ". The budget bounds live buffers.",
                }
            }
            @if let Some(pools) = &record.pools {
                p {
                    "The pools were trimmed " (several(pools.trims as usize, "time")) " to stay within the budget."
                }
            }
        } @else {
            p {
                "Memory is every live byte that the process has allocated, counted at every allocation: parameters, \
                 data, tensors and the program's own. Peaks are exact. The processor has no pools, so \
                 nothing is reserved beyond what is in use."
            }
        }
        p {
            "Predictions come from the stages, each measured alone before the run: bytes of its output, of what a \
             tracked forward keeps, and of temporaries; seconds as medians. A simulator then runs the schedule action by \
             action. The plain run was "
            @if record.plain.measured { "measured after this run." } @else { "predicted in the same way." }
        }
        p {
            "The measured step time is the median over all steps but the first, which warms up"
            @if let Some(timeline) = &record.timeline {
                ", and step " (timeline.step) ", which was traced: the meter is read at each action, or at some of many tiny ones, so that the trace \
                 takes no more than 0.5% of what it measures"
            }
            ". The measured peak is over everything the process did."
        }
    }
}

#[cfg(test)]
mod tests {
    use rekindle_train::model::spec::SampleShape;

    use super::*;

    #[test]
    fn layers_that_repeat_are_told_once() {
        let linear = |out| LayerSpec::Linear { out, bias: true };
        let model = ModelSpec {
            input: SampleShape::float([4]),
            layers: vec![linear(8), linear(8), LayerSpec::Relu, linear(2)],
        };
        assert_eq!(layers(&model), "2 x linear 8, relu, linear 2");
    }
}
