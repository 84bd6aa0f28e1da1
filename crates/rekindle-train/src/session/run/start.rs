//! Preparation before a run's first step.

use std::time::Instant;

use super::{
    super::{Event, Job, RunError, Tell, built::Built, from_shapes::refuse_by_shapes},
    PHASED_STEPS, Session,
    growth::GrowthWatch,
    reserve,
};
use crate::{
    device::{DeviceId, OpenDevice, resident},
    file_error::FileError,
    fingerprint::fingerprint,
    model::stage::tie,
    record::StepRecord,
    run_dir::{RunDir, RunFiles, WEIGHTS},
    snapshot::Snapshot,
    step_times::StepTimes,
    tensors::Tensors,
};
use rekindle::{
    record::{
        RecordError,
        driver::{Statistics, free_dead_nodes},
    },
    reduce::broadcast_parameters,
};

impl<'a> Session<'a> {
    /// Builds the model, measures it and makes the plan.
    pub(in super::super) fn prepare(
        job: &'a Job<'a>,
        id: DeviceId,
        OpenDevice { device, meter }: OpenDevice,
        tell: &'a mut Tell<'a>,
    ) -> Result<Self, RunError> {
        let settings = job.settings;
        let fingerprint = fingerprint(job.model, settings, job.train);
        let ranks = &job.ranks;
        let mut times = StepTimes::new();
        let exchange_times = (!ranks.is_alone()).then(StepTimes::new);
        let opened = ranks
            .check(settings)
            .and_then(|()| open_run_dir(job, &fingerprint, &mut times, tell));
        let (files, snapshot) = ranks.settled(opened)?;
        ranks.settled(job.agree(&fingerprint))?;
        let mut snapshot = ranks.settled(ranks.snapshot(snapshot))?;
        let progress = snapshot
            .as_ref()
            .map(|snapshot| snapshot.progress().clone())
            .unwrap_or_default();

        let built = refuse_by_shapes(job, &*meter).and_then(|()| Built::new(job, &device));
        let built = built.and_then(|mut built| {
            if let Some(snapshot) = &mut snapshot {
                built.model = snapshot.restore(built.model)?;
            } else if let Some(path) = &job.weights {
                let mut weights = Tensors::open(path)?;
                weights.check_all_used(&built.model)?;
                built.model = weights.restore(built.model)?;
            }
            Ok(built)
        });
        let mut built = ranks.settled(built)?;
        let opened_again = snapshot.map(Snapshot::close);
        if let Some(reducer) = ranks.reducer() {
            let model = broadcast_parameters(&reducer, built.model);
            built.model = model.map_err(RecordError::from)?;
        }
        // Reading creates separate tensors for tied weights.
        tie(&mut built.model);
        // Reading leaves more of them than drawing, and they would count in the plan.
        free_dead_nodes(&device);
        let engine = built.record(job, &device, &meter, tell);
        let mut engine = ranks.settled(engine)?;
        let planned = engine.plan(job, &job.schedule).and_then(|planned| {
            tell(Event::Planned {
                planned: &planned,
                step: progress.steps + 1,
            });
            let peak = planned.summary.predicted_peak;
            if let Some(free) = job.free().filter(|free| peak > *free) {
                return Err(RunError::NotEnough {
                    peak,
                    free,
                    total: job.device.and_then(|device| device.total_bytes),
                });
            }
            Ok(planned)
        });
        let planned = ranks.settled(planned)?;
        let plan = planned.summary.clone();
        ranks.note(|record| {
            record.batch = job.part().len();
            record.budget_bytes = plan.budget;
            record.predicted_peak_bytes = plan.predicted_peak;
        });
        meter.keep_reserve(reserve(&planned));
        let beside_heap = match id {
            DeviceId::Cpu => {
                meter.release();
                resident().map(|bytes| bytes - meter.read().in_use_bytes)
            }
            _ => None,
        };
        let Built {
            model,
            shape,
            batches,
        } = built;
        // Only now, because the plan counts the optimizer's state separately from the bytes in use during measuring.
        let resumed_at = opened_again.is_some().then_some(progress.steps);
        let optimizer = engine.optimizer(settings);
        let optimizer = match opened_again {
            Some(open) => {
                open().and_then(|mut snapshot| optimizer.restored(&mut snapshot, &model, &device))
            }
            None => Ok(optimizer),
        };
        let optimizer = ranks.settled(optimizer.map_err(RunError::from))?;
        Ok(Self {
            job,
            tell,
            id,
            device,
            meter,
            batches,
            planned,
            plan,
            engine,
            statistics: Statistics::of(&model),
            model,
            param_count: shape.param_count(),
            beside_heap,
            optimizer,
            budget: job.budget(),
            settled: false,
            phases: Vec::new(),
            traced: files
                .is_some()
                .then(|| settings.steps.min(progress.steps + PHASED_STEPS + 1)),
            trace: Vec::new(),
            exchanges: Vec::new(),
            progress,
            times,
            exchange_times,
            resumed_at,
            fingerprint,
            files,
            nonfinite_steps: 0,
            overflow_steps: 0,
            replans: 0,
            growth: GrowthWatch::default(),
            tried: Instant::now(),
        })
    }
}

/// The run's files, if any, and the snapshot from which it resumes. Times of earlier steps are added to `times`.
fn open_run_dir(
    job: &Job<'_>,
    fingerprint: &str,
    times: &mut StepTimes,
    tell: &mut Tell<'_>,
) -> Result<(Option<RunFiles>, Option<Snapshot>), RunError> {
    let Some(run_dir) = &job.run_dir else {
        return Ok((None, None));
    };
    let folder = run_dir.folder();
    let (lock, snapshot) = run_dir.lock(tell)?;
    let steps = job.settings.steps;
    let before = snapshot.as_ref();
    before.map_or(Ok(()), |before| before.check(fingerprint, steps))?;
    // A run that was stopped right after its last step has left the rest to be done.
    let finished = run_dir.finished();
    if finished == Some(steps) {
        return Err(RunError::Finished {
            path: folder.to_path_buf(),
            steps,
        });
    }
    let progress = before.map(|before| before.progress().clone());
    if let (None, RunDir::Resume(_)) = (&progress, run_dir) {
        if let Some(finished) = finished {
            let weights = folder.join(WEIGHTS);
            let reason = format!(
                "has finished {finished} steps, and no snapshot is left to go on from: start a new run in another folder, \
                 from these weights with `--weights {}`",
                weights.display()
            );
            return Err(FileError::content(folder, reason).into());
        }
        let shown = folder.display();
        let again = format!("{shown}: the run has no snapshot and starts again");
        tell(Event::Noticed(&again));
    }
    let each = |step: &StepRecord| times.add(step.step_s, step.step > 1);
    let keep = job.keep_snapshots;
    let progress = progress.unwrap_or_default();
    let files = RunFiles::open(folder, lock, keep, &progress, each, tell)?;
    Ok((Some(files), snapshot))
}
