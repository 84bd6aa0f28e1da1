//! Refuses a training that cannot work before anything of it is built, by its shapes: in a second, where measuring takes minutes.
//!
//! What counts is what every schedule takes that the job allows, less what counting may miss. What may work is measured.

use rekindle_plan::{Bytes, Planner};

use super::{Infeasible, Job, RunError, ScheduleRequest};
use crate::{
    FileError,
    data::batches::too_large,
    estimate::{Estimated, kernels},
    fit::largest,
    settings::{LossChunks, StateChoice, TrainSettings},
};
use rekindle::{
    meter::{Count, Meter},
    record::{Estimate, Kernels, Update, driver::plan_of_profile},
};

/// Share by which a peak may differ from what is counted on the processor.
const MISSED: f64 = 0.05;

/// Share of what is counted that the pools of a GPU may take more.
const MISSED_OF_POOLS: f64 = 0.25;

/// Bytes of parameters and of activations between layers up to which a training is measured: that takes seconds, and is exact.
const SMALL: u64 = 64 << 20;

/// The most samples that are recorded where the loss has more operations for each of them.
const MOST_RECORDED: usize = 4096;

/// Bytes of threads and of burn that come with a training. Observed.
const PROCESS_BYTES: Bytes = Bytes(2 << 20);

/// Fails if no schedule that the job allows fits its budget, or without one the device's free memory; or if the data has fewer
/// samples than its batch.
pub(super) fn refuse_by_shapes(job: &Job<'_>, meter: &dyn Meter) -> Result<(), RunError> {
    let (asked, samples) = (job.settings.batch, job.train.len());
    let unit = job.settings.parts() * job.ranks.count();
    if asked <= samples {
        return refuse(job, meter, asked, unit);
    }
    let (too_large, most) = (too_large(asked, samples), samples / unit * unit);
    if most == 0 {
        return Err(too_large.into());
    }
    let works = match refuse(job, meter, most, unit) {
        Ok(()) => most,
        Err(RunError::Infeasible(Infeasible {
            batch: Some(batch), ..
        })) => batch,
        refused => return refused,
    };
    let message = format!("{too_large}: try `--batch {works}`");
    Err(FileError::setting(message).into())
}

/// The same for so many samples of a step, a multiple of `unit` where they are not those of the settings.
fn refuse(job: &Job<'_>, meter: &dyn Meter, batch: usize, unit: usize) -> Result<(), RunError> {
    let shape = job.model.blueprint()?.shape;
    let outputs = shape.layers.iter().map(|layer| layer.output.elements());
    let samples = job.ranks.part(batch).len() / job.settings.parts();
    let numbers = outputs.sum::<u64>().saturating_mul(samples as u64);
    let numbers = numbers.saturating_add(shape.param_count());
    let (free, budget) = (job.free(), job.budget());
    let (Some(device), Some(limit)) = (job.device, free.into_iter().chain(budget).min()) else {
        return Ok(());
    };
    if numbers <= SMALL / 4 {
        return Ok(());
    }
    let at = match job.settings.loss_chunks {
        LossChunks::Auto => batch.min(MOST_RECORDED * unit),
        _ => batch,
    };
    let shapes = Shapes {
        job,
        kernels: kernels(device.device),
        context: match job.count {
            Count::Reserved => meter.context_bytes(),
            Count::InUse => Bytes::ZERO,
        },
    };
    // Planning takes memory, which counts as the run's: where the run goes on, there is none.
    let least = shapes.smallest(at, |one| Ok(shapes.least(one)))?;
    if least <= limit {
        return Ok(());
    }
    let Some(planner) = shapes.planner() else {
        return Err(RunError::NotEnough {
            peak: least,
            free: limit,
            total: device.total_bytes,
        });
    };
    let enough = shapes.enough(planner, at)?;
    // No part of a step's memory grows faster than the batch.
    let whole = |enough: Bytes| Bytes((enough.0 as f64 * batch as f64 / at as f64) as u64);
    let smallest_of_all = match planner {
        Planner::Auto => enough,
        _ => shapes.enough(Planner::Auto, at)?.min(enough),
    };
    let first = (limit.0 as f64 / enough.0 as f64 * at as f64) as usize / unit;
    let fits = |units| Ok::<_, RunError>(shapes.enough(planner, units * unit)? <= limit);
    let most = (at / unit).saturating_sub(1);
    let works = largest(most, first, (1.5, 0.02), |_| true, fits)?.fits;
    Err(RunError::Infeasible(Infeasible {
        planner,
        budget: limit,
        smallest: whole(enough),
        smallest_of_all: whole(smallest_of_all),
        floor: None,
        batch: (works > 0).then_some(works * unit),
    }))
}

/// What a job's steps take by their shapes.
struct Shapes<'a> {
    job: &'a Job<'a>,
    kernels: Kernels,
    /// What the device's driver takes, as far as that counts.
    context: Bytes,
}

impl Shapes<'_> {
    fn on_host(&self) -> bool {
        self.kernels != Kernels::Device
    }

    /// Who plans, if it is not planned yet: nothing is recomputed without a budget.
    fn planner(&self) -> Option<Planner> {
        match &self.job.schedule {
            ScheduleRequest::Given(_) => None,
            ScheduleRequest::Plan(request) => Some(match (request.planner, request.budget) {
                (Planner::Auto, None) => Planner::None,
                (planner, _) => planner,
            }),
        }
    }

    /// What every schedule that the job allows takes at least.
    fn least(&self, one: &Estimate) -> Bytes {
        let profile = &one.profile;
        let exact = match (&self.job.schedule, self.planner()) {
            _ if !self.on_host() => None,
            (ScheduleRequest::Given(file), _) => {
                let order = file.order_of(profile.recording).ok();
                let plan = order.and_then(|order| plan_of_profile(profile, None, order).ok());
                plan.map(|(plan, _)| plan.predicted_peak)
            }
            (_, Some(planner @ (Planner::None | Planner::Segments(Some(_))))) => {
                profile.smallest_budget(planner).ok()
            }
            _ => None,
        };
        let counted = match exact {
            Some(exact) => exact,
            None if self.on_host() => profile.least_bytes(),
            None => {
                let mut profile = profile.clone();
                // Kernels may write over what they read.
                for operation in &mut profile.graph.operations {
                    operation.in_place = Some(0);
                    operation.temp_bytes = Bytes::ZERO;
                }
                profile.update_bytes -= one.chain.optimizer.temp_bytes;
                profile.least_bytes()
            }
        };
        // Ranks divide it, or it waits on the host.
        let elsewhere = match self.job.shards() || self.job.host.is_some() {
            true => one.state_bytes,
            false => Bytes::ZERO,
        };
        let counted = counted - elsewhere;
        counted - Bytes((counted.0 as f64 * MISSED) as u64) + self.context
    }

    /// What is enough for a step with so many samples.
    fn enough(&self, planner: Planner, batch: usize) -> Result<Bytes, RunError> {
        self.smallest(batch, |one| {
            let enough = match planner {
                Planner::Auto | Planner::Optimal => one.profile.leanest_stages()?,
                _ => one.profile.smallest_budget(planner)?,
            };
            let (missed, besides) = match self.on_host() {
                true => (MISSED, PROCESS_BYTES),
                false => (MISSED_OF_POOLS, self.context),
            };
            // In buckets of gradients, which may hold all of them.
            let sent = match self.job.ranks.is_alone() {
                true => Bytes::ZERO,
                false => Bytes(6 * size_of::<f32>() as u64 * one.trainable),
            };
            Ok(enough + Bytes((enough.0 as f64 * missed) as u64) + besides + sent)
        })
    }

    /// The least that a step with so many samples takes of all its updates.
    fn smallest(
        &self,
        batch: usize,
        takes: impl Fn(&Estimate) -> Result<Bytes, RunError>,
    ) -> Result<Bytes, RunError> {
        let held = Bytes(rekindle_alloc::in_use() as u64);
        let mut found = Bytes::MAX;
        for &update in self.job.updates().each() {
            let own = estimated(self.job, batch, update, self.kernels, Some(held))?;
            found = found.min(takes(&own)?);
        }
        Ok(found)
    }
}

/// This rank's part of the job's step with so many samples, by its shapes.
pub(super) fn estimated(
    job: &Job<'_>,
    batch: usize,
    update: Update,
    kernels: Kernels,
    process: Option<Bytes>,
) -> Result<Estimate, RunError> {
    let settings = TrainSettings {
        batch: job.ranks.part(batch).len(),
        update: update.into(),
        optimizer_state: match job.shards() {
            true => StateChoice::Sharded,
            false => StateChoice::Whole,
        },
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
