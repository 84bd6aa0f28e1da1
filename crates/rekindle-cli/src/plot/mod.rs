//! Pictures, as SVG.
//!
//! | module | what it owns |
//! |---|---|
//! | [`theme`] | colours for light and dark, sizes, fonts |
//! | [`canvas`] | a picture from its first tag to its last; text that fits |
//! | [`axis`] | units and ticks |
//! | [`frame`] | a pair of axes |
//! | [`legend`] | what the colours mean, in as many rows as it takes |
//! | [`columns`] | a timeline in no more columns than a picture has |
//! | [`timeline`] | one step: what was held when, and why |
//! | [`comparison`] | one step each of several runs |
//! | [`curve`] | losses |
//! | [`frontier`] | a sweep: what memory buys in time |
//! | [`shape`], [`labels`] | marks of single points, and words beside them |
//!
//! A picture is painted once, in the light colours; a style sheet inside it turns them dark where the reader's screen
//! is. So a picture must take every colour from the theme. Pictures load nothing and run nothing.

mod axis;
pub mod canvas;
mod columns;
pub mod comparison;
pub mod curve;
mod frame;
pub mod frontier;
mod labels;
pub mod legend;
mod shape;
pub mod theme;
pub mod timeline;

use rekindle::meter::Count;
use rekindle_plan::{Action, Bytes};
use rekindle_train::{
    record::RunRecord,
    timeline::{Pass, TimedAction},
};

/// The budget in the bytes that a timeline counts. On a GPU it may bound the driver's context and the pools too, which no
/// meter of live buffers sees.
fn comparable_budget(record: &RunRecord) -> Option<Bytes> {
    let beside = record.timeline.as_ref()?.beside_buffers_bytes;
    record.budget_bytes.map(|budget| budget - beside)
}

fn budget_remark(record: &RunRecord) -> &'static str {
    match (&record.pools, record.count) {
        (Some(_), Count::Reserved) => {
            " less the driver's context and the pools' overhead (bounds what is reserved)"
        }
        _ => "",
    }
}

/// An action by its stage's name.
pub fn what_runs(record: &RunRecord, timed: &TimedAction) -> String {
    let name = |stage: usize| {
        let stage = record.stages.get(stage);
        stage.map_or("a stage", |stage| stage.name.as_str())
    };
    let action = match timed.action {
        Action::Forward(stage) | Action::ForwardKeep(stage) => {
            format!("the forward of {}", name(stage.0))
        }
        Action::ForwardTracked { stage, .. } => {
            format!("the tracked forward of {}", name(stage.0))
        }
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
