//! The page of one run.

use maud::{Markup, html};
use rekindle::meter::Count;
use rekindle_plan::Seconds;
use rekindle_train::{
    model::spec::{LayerSpec, ModelSpec},
    record::{EvalRecord, RunRecord, StageRecord, StepRecord},
    settings::TrainSettings,
};

use super::{cells, figure, page};
use crate::{
    failure::Failure,
    plot,
    started::Started,
    summary,
    table::{several, thousands},
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
        @if let Some(started) = started {
            p.soft {
                code { (started.line()) }
                @if let Some((at, version)) = started.at() { ", " (at) ", rekindle " (version) }
            }
        }
        (remarks(record))
        (headline(record))
        h2 { "Predicted and measured" }
        (predictions(record))
        p { (cells::prose(&summary::saved(record))) }
        (timeline(record)?)
        h2 { "Memory by phase" }
        (phases(record))
        ul { @for sentence in summary::phases::sentences(record, true) { li { (cells::prose(&sentence)) } } }
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

/// What is odd about the run.
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
            @if let Some(first) = summary::peaks(record).first() { div.card { (first.name) b { (cells::bytes(peak)) } } }
            div.card { "of the plain run's" b { (format!("{share:.0}%")) } span.soft { (cells::bytes(record.plain.peak_bytes)) ", " (plain) } }
            div.card { "step time" b { (cells::seconds(record.measured_step_s)) } span.soft { (format!("{slower:.2}")) " x the plain run's, " (plain) } }
            @if let Some(budget) = record.budget_bytes {
                div.card {
                    "budget" b { (cells::bytes(budget)) }
                    @if peak <= budget { span.good { "kept, " (cells::bytes(budget - peak)) " to spare" } }
                    @else { span.bad { "passed by " (cells::bytes(peak - budget)) } }
                }
            }
        }
    }
}

fn predictions(record: &RunRecord) -> Markup {
    let mut rows: Vec<_> = summary::peaks(record)
        .into_iter()
        .map(|peak| {
            vec![
                html! { (peak.name) },
                cells::bytes(peak.predicted),
                cells::bytes(peak.measured),
                html! { (summary::error(peak.predicted.0 as f64, peak.measured.0 as f64)) },
                cells::bytes_or_dash(peak.budget),
            ]
        })
        .collect();
    rows.extend(
        summary::times(record)
            .into_iter()
            .map(|(name, predicted, measured)| {
                vec![
                    html! { (name) },
                    cells::seconds(predicted),
                    cells::seconds(measured),
                    html! { (summary::error(predicted.0, measured.0)) },
                    html! { "-" },
                ]
            }),
    );
    cells::table(&["", "predicted", "measured", "error", "budget"], 1, &rows)
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
                        (cells::bytes(highest.predicted_at_peak.total())) "; the highest measurement of this step is "
                        (cells::bytes(timeline.measured_peak())) "."
                    }
                }
            }
            _ => p.soft {
                "There is none: a run traces its fourth step, or its last if that comes first, and was stopped before."
            }
        }
    })
}

fn phases(record: &RunRecord) -> Markup {
    let readings = || record.phases.iter().flat_map(|step| &step.phases);
    let pools = readings().any(|reading| reading.memory.reserved_bytes.is_some());
    let reserved = match pools {
        true => &["reserved after", "peak reserved"][..],
        false => &[],
    };
    html! {
        div.scroll {
            table {
                thead { tr {
                    th { "step" } th { "phase" } th.number { "in use after" } th.number { "peak in use" }
                    @for title in reserved { th.number { (title) } }
                    th.number { "time" }
                } }
                tbody {
                    @for step in &record.phases {
                        @for (index, reading) in step.phases.iter().enumerate() {
                            tr class=[(index == 0).then_some("first")] {
                                td { @if index == 0 { (step.step) } }
                                td { (reading.phase.name()) }
                                td.number { (cells::bytes(reading.memory.in_use_bytes)) }
                                td.number { (cells::bytes(reading.memory.peak_in_use_bytes)) }
                                @if pools {
                                    td.number { (cells::bytes_or_dash(reading.memory.reserved_bytes)) }
                                    td.number { (cells::bytes_or_dash(reading.memory.peak_reserved_bytes)) }
                                }
                                td.number { (cells::seconds(Seconds(reading.seconds_s))) }
                            }
                        }
                    }
                }
            }
        }
    }
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
        (stages(&record.stages))
    }
}

/// Stages, those that are alike and follow each other in one row.
fn stages(stages: &[StageRecord]) -> Markup {
    let alike = |a: &StageRecord, b: &StageRecord| {
        (a.forwards, a.output_bytes, a.saved_bytes, a.param_bytes)
            == (b.forwards, b.output_bytes, b.saved_bytes, b.param_bytes)
    };
    let mut first = 0;
    let rows = stages.chunk_by(alike).map(|group| {
        let last = first + group.len() - 1;
        let numbers = match group.len() {
            1 => first.to_string(),
            _ => format!("{first}-{last}"),
        };
        first = last + 1;
        let stage = &group[0];
        vec![
            html! { (numbers) },
            html! { (stage.name) @if group.len() > 1 { " to " (group[group.len() - 1].name) } },
            html! { (stage.forwards) },
            cells::bytes(stage.output_bytes),
            cells::bytes(stage.saved_bytes),
            cells::bytes(stage.param_bytes),
        ]
    });
    let header = [
        "stage",
        "name",
        "forwards",
        "output",
        "kept for backward",
        "parameters",
    ];
    cells::table(&header, 2, &rows.collect::<Vec<_>>())
}

fn losses(record: &RunRecord, evaluations: &[EvalRecord]) -> Markup {
    let accuracy = |share: Option<f64>| html! { (share.map_or("-".into(), |share| format!("{:.1}%", 100.0 * share))) };
    let rows = evaluations.iter().map(|evaluation| {
        vec![
            html! { (evaluation.step) },
            html! { (evaluation.samples) },
            html! { (format!("{:.4}", evaluation.loss)) },
            accuracy(evaluation.accuracy),
        ]
    });
    html! {
        p {
            "Loss " (format!("{:.4}", record.first_loss)) " in step 1, " (format!("{:.4}", record.last_loss))
            " in step " (record.steps) "."
        }
        @if !evaluations.is_empty() {
            (cells::table(&["after step", "samples", "evaluation loss", "accuracy"], 0, &rows.collect::<Vec<_>>()))
        }
    }
}

fn config(record: &RunRecord) -> Markup {
    let settings = settings(&record.settings);
    html! {
        p { "Input " code { (record.model.input) } ", " (thousands(record.param_count)) " trainable values, layers:" }
        p { code { (layers(&record.model)) } }
        (cells::table(&["setting", "value"], 2, &settings))
    }
}

/// The layers in order, those that repeat once.
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
        LayerSpec::Linear { out, .. } => format!("linear {out}"),
        LayerSpec::Conv2d { out, kernel, .. } => {
            format!("conv2d {out} {}x{}", kernel[0], kernel[1])
        }
        LayerSpec::Embedding { vocab, dim } => format!("embedding {vocab}x{dim}"),
        LayerSpec::Dropout { p } => format!("dropout {p}"),
        LayerSpec::Residual { layers } => {
            let inner: Vec<_> = layers.iter().map(layer_name).collect();
            format!("residual({})", inner.join(", "))
        }
        other => other.kind().into(),
    }
}

/// Settings by their names in configs.
fn settings(settings: &TrainSettings) -> Vec<Vec<Markup>> {
    let values = serde_json::to_value(settings).unwrap_or_default();
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => "-".into(),
        serde_json::Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| match value.as_str() {
                Some(text) if key == "type" => text.to_owned(),
                _ => format!("{key} {value}"),
            });
            fields.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    };
    let rows = values.as_object().into_iter().flatten();
    rows.map(|(key, value)| vec![html! { (key) }, html! { (text(value)) }])
        .collect()
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
