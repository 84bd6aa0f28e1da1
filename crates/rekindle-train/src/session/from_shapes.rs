//! Refuses a training that cannot work before anything of it is built, by its shapes: in a second, where measuring takes minutes.
//!
//! On the processor, whose kernels' memory is known. What may work is measured.

use rekindle_plan::{Bytes, Planner};

use super::{Infeasible, Job, RunError, ScheduleRequest};
use crate::{
    device::DeviceId,
    estimate::{Estimated, kernels},
    fit::largest,
    settings::{LossChunks, TrainSettings},
};
use rekindle::record::{Estimate, Kernels, Update};

/// Share by which a peak may differ from what is counted.
const MISSED: f64 = 0.05;

/// Bytes of parameters and of activations between layers up to which a training is measured: that takes seconds, and is exact.
const SMALL: u64 = 64 << 20;

/// The most samples that are recorded where the loss has more operations for each of them.
const MOST_RECORDED: usize = 4096;

/// Bytes of threads and of burn that come with a training. Observed.
const PROCESS_BYTES: Bytes = Bytes(2 << 20);

/// Fails if no plan of the job fits its budget.
pub(super) fn refuse_by_shapes(job: &Job<'_>) -> Result<(), RunError> {
    let (settings, of_data) = (job.settings, job.train.len());
    let device = job.device.filter(|one| one.device == DeviceId::Cpu);
    let (Some(_), Some(limit), ScheduleRequest::Plan(request)) =
        (device, job.budget(), &job.schedule)
    else {
        return Ok(());
    };
    let planner = request.planner;
    let shape = job.model.blueprint()?.shape;
    let outputs = shape.layers.iter().map(|layer| layer.output.elements());
    let numbers = outputs
        .sum::<u64>()
        .saturating_mul(job.micro_batch() as u64);
    let numbers = numbers.saturating_add(shape.param_count());
    // Ranks share what they hold, and a batch that is larger than the data is refused as such.
    if !job.ranks.is_alone() || settings.batch > of_data || numbers <= SMALL / 4 {
        return Ok(());
    }
    let at = match settings.loss_chunks {
        LossChunks::Auto => settings.batch.min(MOST_RECORDED * settings.parts()),
        _ => settings.batch,
    };
    // Planning takes memory, which counts as the run's: where the run goes on, there is none.
    let least = smallest(job, at, |one| Ok(one.profile.least_bytes()))?;
    if least.0 as f64 * (1.0 - MISSED) <= limit.0 as f64 {
        return Ok(());
    }
    let enough = enough(job, planner, at)?;
    // No part of a step's memory grows faster than the batch.
    let whole = |enough: Bytes| Bytes((enough.0 as f64 * settings.batch as f64 / at as f64) as u64);
    let smallest_of_all = match planner {
        Planner::Auto => enough,
        _ => self::enough(job, Planner::Auto, at)?.min(enough),
    };
    let unit = settings.parts();
    let first = (limit.0 as f64 / enough.0 as f64 * at as f64) as usize / unit;
    let fits = |units| Ok::<_, RunError>(self::enough(job, planner, units * unit)? <= limit);
    let batch = largest(at / unit - 1, first, (1.5, 0.02), |_| true, fits)?.fits;
    Err(RunError::Infeasible(Infeasible {
        planner,
        budget: limit,
        smallest: whole(enough),
        smallest_of_all: whole(smallest_of_all),
        floor: None,
        from_shapes: true,
        batch: (batch > 0).then_some(batch * unit),
    }))
}

/// What is enough for a step with so many samples.
fn enough(job: &Job<'_>, planner: Planner, batch: usize) -> Result<Bytes, RunError> {
    smallest(job, batch, |one| {
        let enough = match planner {
            Planner::Auto | Planner::Optimal => one.profile.leanest_stages()?,
            _ => one.profile.smallest_budget(planner)?,
        };
        let missed = Bytes((enough.0 as f64 * MISSED) as u64);
        Ok(enough + missed + PROCESS_BYTES)
    })
}

/// The least that a step with so many samples takes of all its updates.
fn smallest(
    job: &Job<'_>,
    batch: usize,
    takes: impl Fn(&Estimate) -> Result<Bytes, RunError>,
) -> Result<Bytes, RunError> {
    let held = Bytes(rekindle_alloc::in_use() as u64);
    let mut found = Bytes::MAX;
    for &update in job.updates().each() {
        let own = estimated(job, batch, update, kernels(DeviceId::Cpu), Some(held))?;
        found = found.min(takes(&own)?);
    }
    Ok(found)
}

/// The job's step with so many samples, by its shapes.
pub(super) fn estimated(
    job: &Job<'_>,
    batch: usize,
    update: Update,
    kernels: Kernels,
    process: Option<Bytes>,
) -> Result<Estimate, RunError> {
    let settings = TrainSettings {
        batch,
        update: update.into(),
        ..job.settings.clone()
    };
    let estimated = Estimated {
        model: job.model,
        settings: &settings,
        target: job.train.target(),
        ranks: job.ranks.count(),
        kernels,
        process,
    };
    estimated.estimate()
}
