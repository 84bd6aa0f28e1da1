//! A whole run: build, measure, plan, train, evaluate, record.
//!
//! This is where a device is opened.
//!
//! | file | what it owns |
//! |---|---|
//! | `job.rs`, `plan_file.rs` | what is to be trained, and where its schedule comes from |
//! | `from_shapes.rs` | what is refused before anything is built |
//! | `built.rs` | the model as it is built; its step, recorded and measured |
//! | `plans.rs`, `planned.rs` | plans of that step, and what each takes |
//! | `measured_step.rs` | a step that was measured elsewhere, and its plans |
//! | `frontier.rs` | plans for many budgets |
//! | `run.rs`, `run/` | the training loop: start, steps, evaluations, snapshots, other plans when memory is short, record |
//! | `event.rs` | what happens in a run, as it is told |
//! | `out_of_memory.rs` | memory that ran out |

pub(super) mod built;
mod event;
mod from_shapes;
mod frontier;
mod job;
mod measured_step;
mod out_of_memory;
mod plan_file;
mod planned;
mod plans;
mod run;

use self::built::Built;
pub use self::{
    event::{Event, MemoryNow, Tell},
    frontier::{FRONTIER_FORMAT, Frontier},
    job::{Job, KEEP_SNAPSHOTS, ScheduleRequest},
    measured_step::MeasuredStep,
    out_of_memory::OutOfMemory,
    plan_file::{PLAN_FORMAT, PlanFile},
    planned::{Planned, holders},
};
use crate::{
    device::{DeviceId, OpenDevice, open},
    record::RunRecord,
};
pub use crate::{
    engine::Engine,
    run_error::{Infeasible, RunError},
};

/// Runs a job on a device that was probed before: a GPU that does not work may cause a panic below burn.
///
/// # Errors
///
/// A [`RunError`]. Files of the run's folder that cannot be written during training are not errors, but [told](Event::Noticed).
pub fn run(job: &Job<'_>, device: DeviceId, tell: &mut Tell<'_>) -> Result<RunRecord, RunError> {
    let opened = open(device, job.settings.dtype)?;
    run::Session::prepare(job, device, opened, tell)?.run()
}

/// Measures the step that [`run`] would plan, without training.
///
/// # Errors
///
/// See [`run`].
pub fn measure(job: &Job<'_>, device: DeviceId, tell: &mut Tell<'_>) -> Result<Engine, RunError> {
    let ranks = &job.ranks;
    let opened = ranks.check(job.settings);
    let opened = opened.and_then(|()| Ok(open(device, job.settings.dtype)?));
    let OpenDevice { device, meter } = ranks.settled(opened)?;
    let engine = Built::new(job, &device).and_then(|built| {
        let engine = built.record(job, &device, &meter, tell)?;
        Ok(Engine {
            _held: Some(built.model),
            ..engine
        })
    });
    ranks.settled(engine)
}
