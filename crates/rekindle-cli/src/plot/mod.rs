//! Pictures, as SVG.
//!
//! | module | what it owns |
//! |---|---|
//! | [`theme`] | sizes, fonts, colours |
//! | [`chart`] | a complete picture: axes, legend, notes |
//! | [`axis`] | units and ticks |
//! | [`columns`] | a timeline reduced to the columns of a picture |
//! | [`timeline`] | one step: memory over time, by kind |
//! | [`comparison`] | one step each of several runs |
//! | [`curve`] | losses |
//! | [`frontier`], [`labels`] | a sweep: memory against time; the labels of its marks |
//!
//! Pictures load no resources and contain no scripts.

mod axis;
pub mod chart;
mod columns;
pub mod comparison;
pub mod curve;
pub mod frontier;
mod labels;
mod theme;
pub mod timeline;

use rekindle::meter::Count;
use rekindle_plan::{Action, Bytes};
use rekindle_train::{
    record::RunRecord,
    timeline::{Pass, TimedAction},
};

/// The budget, if it bounds the bytes that a timeline counts. On a GPU it may also bound the driver's context and the
/// pools, which a meter of live buffers does not measure.
fn comparable_budget(record: &RunRecord) -> Option<Bytes> {
    let beside = record.timeline.as_ref()?.beside_buffers_bytes;
    record.budget_bytes.map(|budget| budget - beside)
}

fn budget_note(record: &RunRecord) -> Option<&'static str> {
    let reserved = record.pools.is_some() && record.count == Count::Reserved;
    reserved.then_some(
        "The budget bounds reserved memory; it is drawn less the driver's context and the pools' overhead.",
    )
}

/// An action by its stage's name.
pub fn what_runs(record: &RunRecord, timed: &TimedAction) -> String {
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
