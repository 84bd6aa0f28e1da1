//! A traced step in Chrome's trace event format, which Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing` open.
//!
//! Actions are complete events of one thread, and what the network did for a run on several ranks of another beside it, in
//! microseconds from the start of the step; the most that was held in each, as predicted and as measured, are counters in bytes. The format: "Trace Event Format", Duygulu, Nilsson and others, Google.

use rekindle::record::Exchanges;
use rekindle_plan::{Bytes, Seconds};
use rekindle_train::{
    record::RunRecord,
    timeline::{TimedAction, TimedExchange, Timeline},
};
use serde::Serialize;

use crate::{failure::Failure, plot};

/// The file.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    trace_events: Vec<Event>,
    display_time_unit: &'static str,
}

#[derive(Serialize)]
struct Event {
    name: String,
    #[serde(rename = "cat", skip_serializing_if = "Option::is_none")]
    category: Option<&'static str>,
    #[serde(rename = "ph")]
    phase: char,
    #[serde(rename = "ts")]
    start_us: f64,
    #[serde(rename = "dur", skip_serializing_if = "Option::is_none")]
    duration_us: Option<f64>,
    pid: u32,
    tid: u32,
    args: Arguments,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Arguments {
    Name {
        name: String,
    },
    Held {
        predicted_peak_bytes: Bytes,
        measured_peak_bytes: Bytes,
        predicted_after_bytes: Bytes,
        measured_after_bytes: Bytes,
        #[serde(skip_serializing_if = "Option::is_none")]
        reserved_bytes: Option<Bytes>,
    },
    Bytes {
        bytes: Bytes,
    },
}

/// The threads of actions and of the exchange.
const ACTIONS: u32 = 1;
const EXCHANGE: u32 = 2;

/// The trace of a run's timeline.
pub fn trace(record: &RunRecord, timeline: &Timeline) -> Result<String, Failure> {
    let named = |what: &str, tid, name: String| Event {
        name: what.into(),
        category: None,
        phase: 'M',
        start_us: 0.0,
        duration_us: None,
        pid: 1,
        tid,
        args: Arguments::Name { name },
    };
    let mut events = vec![
        named(
            "process_name",
            ACTIONS,
            format!("rekindle: {}", record.name),
        ),
        named("thread_name", ACTIONS, format!("step {}", timeline.step)),
    ];
    if !timeline.exchanges.is_empty() {
        events.push(named("thread_name", EXCHANGE, "exchange".into()));
        events.extend(timeline.exchanges.iter().map(exchange));
    }
    for action in &timeline.actions {
        events.push(complete(record, action));
        let measured = action.measured_peak_bytes;
        events.push(counter("measured", action.start_s, measured));
        let predicted = action.predicted_at_peak.total();
        events.push(counter("predicted", action.start_s, predicted));
    }
    let file = File {
        trace_events: events,
        display_time_unit: "ms",
    };
    serde_json::to_string(&file).map_err(Failure::other)
}

fn exchange(one: &TimedExchange) -> Event {
    let name = match one.what {
        Exchanges::Gradients => "all-reduce",
        Exchanges::Mean => "mean over ranks",
        Exchanges::Parameters => "parameters",
    };
    Event {
        name: name.into(),
        category: Some("exchange"),
        phase: 'X',
        start_us: microseconds(one.start_s),
        duration_us: Some(microseconds(one.duration_s)),
        pid: 1,
        tid: EXCHANGE,
        args: Arguments::Bytes { bytes: one.bytes },
    }
}

fn complete(record: &RunRecord, action: &TimedAction) -> Event {
    Event {
        name: plot::what_runs(record, action),
        category: Some(plot::timeline::pass_name(action.pass)),
        phase: 'X',
        start_us: microseconds(action.start_s),
        duration_us: Some(microseconds(action.duration_s)),
        pid: 1,
        tid: ACTIONS,
        args: Arguments::Held {
            predicted_peak_bytes: action.predicted_at_peak.total(),
            measured_peak_bytes: action.measured_peak_bytes,
            predicted_after_bytes: action.predicted_after_bytes,
            measured_after_bytes: action.measured_after_bytes,
            reserved_bytes: action.reserved_bytes,
        },
    }
}

fn counter(name: &str, at: Seconds, bytes: Bytes) -> Event {
    Event {
        name: format!("{name} peak"),
        category: None,
        phase: 'C',
        start_us: microseconds(at),
        duration_us: None,
        pid: 1,
        tid: ACTIONS,
        args: Arguments::Bytes { bytes },
    }
}

fn microseconds(seconds: Seconds) -> f64 {
    seconds.0 * 1e6
}
