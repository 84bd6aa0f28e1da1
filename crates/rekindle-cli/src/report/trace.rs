//! A traced step in Chrome's trace event format, which Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing` open.
//!
//! Actions are complete events of one thread, and exchanges of a run on several ranks those of another, in microseconds
//! from the start of the step. The most that was held in each action, as predicted and as measured, are counters in bytes.
//! The format: "Trace Event Format", Duygulu, Nilsson and others, Google.

use rekindle::record::{Exchanges, TimedExchange};
use rekindle_plan::{Action, Bytes, Seconds};
use rekindle_train::{
    record::RunRecord,
    timeline::{Pass, TimedAction, Timeline},
};
use serde_json::{Value, json};

/// The threads of actions and of the exchange.
const ACTIONS: u32 = 1;
const EXCHANGE: u32 = 2;

/// The trace of a run's timeline.
pub fn trace(record: &RunRecord, timeline: &Timeline) -> String {
    let (run, step) = (&record.name, timeline.step);
    let mut events = vec![
        name("process_name", ACTIONS, &format!("rekindle: {run}")),
        name("thread_name", ACTIONS, &format!("step {step}")),
    ];
    if !timeline.exchanges.is_empty() {
        events.push(name("thread_name", EXCHANGE, "exchange"));
        events.extend(timeline.exchanges.iter().map(exchange));
    }
    for action in &timeline.actions {
        let predicted = action.predicted_at_peak.total();
        events.push(complete(record, action));
        events.push(counter("measured", action, action.measured_peak_bytes));
        events.push(counter("predicted", action, predicted));
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" }).to_string()
}

fn name(of: &str, thread: u32, name: &str) -> Value {
    json!({ "name": of, "ph": "M", "ts": 0.0, "pid": 1, "tid": thread, "args": { "name": name } })
}

fn exchange(one: &TimedExchange) -> Value {
    let name = match one.what {
        Exchanges::Gradients => "all-reduce",
        Exchanges::Mean => "mean over ranks",
        Exchanges::Parameters => "parameters",
    };
    json!({
        "name": name, "cat": "exchange", "ph": "X", "pid": 1, "tid": EXCHANGE,
        "ts": microseconds(one.start_s), "dur": microseconds(one.duration_s),
        "args": { "bytes": one.bytes },
    })
}

fn complete(record: &RunRecord, action: &TimedAction) -> Value {
    json!({
        "name": what_runs(record, action), "cat": action.pass,
        "ph": "X", "pid": 1, "tid": ACTIONS,
        "ts": microseconds(action.start_s), "dur": microseconds(action.duration_s),
        "args": {
            "predicted_peak_bytes": action.predicted_at_peak.total(),
            "measured_peak_bytes": action.measured_peak_bytes,
            "predicted_after_bytes": action.predicted_after_bytes,
            "measured_after_bytes": action.measured_after_bytes,
            "reserved_bytes": action.reserved_bytes,
        },
    })
}

/// An action by its stage's name.
fn what_runs(record: &RunRecord, timed: &TimedAction) -> String {
    let name = |stage: usize| {
        let stage = record.stages.get(stage);
        stage.map_or("a stage", |stage| stage.name.as_str())
    };
    let action = match timed.action {
        Action::Forward(stage) => format!("the forward of {}", name(stage.0)),
        Action::Loss => "the loss".into(),
        Action::Backward(stage) => format!("the backward of {}", name(stage.0)),
        Action::Optimize => "the update".into(),
    };
    match timed.pass {
        Pass::Offload => format!("an offload in {action}"),
        Pass::Fetch => format!("a fetch in {action}"),
        _ => action,
    }
}

fn counter(name: &str, action: &TimedAction, bytes: Bytes) -> Value {
    json!({
        "name": format!("{name} peak"), "ph": "C", "pid": 1, "tid": ACTIONS,
        "ts": microseconds(action.start_s), "args": { "bytes": bytes },
    })
}

fn microseconds(seconds: Seconds) -> f64 {
    seconds.0 * 1e6
}
