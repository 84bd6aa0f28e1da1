//! One optimizer step.

use std::{
    mem::{replace, take},
    sync::Arc,
    time::{Duration, Instant},
};

use burn::{optim::GradientsParams, tensor::Tensor};
use rekindle::{
    meter::{PeakMemory, Phase, PhaseReading},
    record::{
        Optimizer, RecordError, TimedExchange, Update,
        driver::{Before, PhaseRecorder, SpanReading, free_dead_nodes},
    },
    sequential::Sequential,
};
use rekindle_plan::{Bytes, Seconds};

use super::{Session, parts::Parts};
use crate::{
    data::batch::Batch,
    finite,
    model::stage::{Stage, tie, untie},
    nonfinite::NonFinite,
    ranks::Tally,
    record::StepRecord,
    run_error::RunError,
    settings::OnNonFinite,
};

/// Bytes of a buffer by which a device is tried: fewer than any device refuses for their size alone.
const TRIAL_BYTES: u64 = 128 << 20;

impl Session<'_> {
    /// The highest peak so far of the bytes that a budget counts.
    pub(super) fn counted_peak(&self) -> Bytes {
        self.meter.lifetime_peak().counted(self.job.count)
    }

    /// Runs one optimizer step on batches whose shapes fit the model: a whole batch, or equal parts of one whose
    /// gradients are summed. Returns what its parts and its update came to, without the gradients, which the update takes. The
    /// phases and spans are those of the last part.
    ///
    /// # Errors
    ///
    /// If the schedule or a batch does not fit the model, there is no batch, the device fails, or something is not
    /// finite and the settings stop there. The model, its statistics and the optimizer are then unchanged.
    pub(super) fn attempt(
        &mut self,
        parts: impl ExactSizeIterator<Item = Result<Batch, RunError>>,
    ) -> Result<(StepRecord, Parts), RunError> {
        let started = Instant::now();
        // Another plan may have been made.
        let optimizer = &mut self.optimizer;
        optimizer.keep_on_host(self.engine.step.state_on_host());
        let before = self.statistics.before(&self.model);
        let rate = self.job.settings.rate_at(self.progress.steps);
        let begun = self.check_first_step();
        let mut parts = match begun.and_then(|()| self.run_parts(parts, rate)) {
            Ok(parts) => parts,
            Err(error) => {
                self.abandon(before);
                return Err(self.job.ranks.fail(error, || self.counted_peak()));
            }
        };
        self.engine.step.set_watched(false);

        let meter = Arc::clone(&self.meter);
        let mut after = PhaseRecorder::start(&*meter);
        let checked = self.check(&mut parts).map(|()| parts.tally);
        let tally = match self.job.ranks.tell(checked, || self.counted_peak()) {
            Ok(tally) => tally,
            Err(error) => {
                drop(parts);
                self.abandon(before);
                return Err(error);
            }
        };
        let loss_scale = self.optimizer.scaler.scale();
        let left_out = |found: &&NonFinite| found.handled == OnNonFinite::Skip;
        let skipped = parts.nonfinite.as_ref().filter(left_out);
        if let Some(found) = skipped {
            drop(take(&mut parts.gradients));
            self.model = before.put_back(self.take_model());
            if found.lower_scale.is_some() {
                self.optimizer.scaler.overflowed();
            } else if let state @ Some(_) = self.not_finite_anywhere()? {
                let found = found.clone();
                return Err(RunError::NonFinite(Box::new(NonFinite { state, ..found })));
            }
        } else {
            drop(before);
            if self.engine.step.update() == Update::After {
                let begun = Instant::now();
                let gradients = take(&mut parts.gradients);
                let shared = self.update(rate, gradients, parts.squares)?;
                if let (Some(shared), Some(exchange)) = (shared, &mut parts.exchange) {
                    let before = parts.spans.last().map(|last| last.done_at);
                    let until = before.unwrap_or_default() + begun.elapsed();
                    exchange.add_shared(shared, until);
                }
            }
            self.optimizer.scaler.updated();
        }
        after.end(Phase::Optimizer);

        self.settled = true;
        let update = after.finish();
        let traced = traced_update(parts.spans.last(), update.first());
        parts.spans.extend(traced);
        parts.phases.extend(update);
        let record = StepRecord {
            step: self.progress.steps + 1,
            loss: parts.loss,
            accuracy: tally.accuracy(),
            learning_rate: rate,
            step_s: Seconds(started.elapsed().as_secs_f64()),
            loss_scale,
            skipped: skipped.is_some(),
        };
        self.progress.stepped(&record);
        Ok((record, parts))
    }

    /// Fails on all ranks before the first step that they run together, where one has no room for an update within it.
    fn check_first_step(&self) -> Result<(), RunError> {
        if self.settled {
            return Ok(());
        }
        let room = match self.engine.step.update() {
            Update::InBackward => self.check_first_update(),
            Update::After => Ok(()),
        };
        let told = room.map(|()| Tally::default());
        self.job.ranks.tell(told, || self.counted_peak()).map(drop)
    }

    /// Fails where a device has no room for the first update, in which the optimizer's state comes: an update that has begun
    /// cannot be taken back.
    fn check_first_update(&self) -> Result<(), RunError> {
        if self.settled || self.meter.read().reserved_bytes.is_none() {
            return Ok(());
        }
        self.meter.trim();
        let device = self.device.clone().without_autodiff();
        let optimizer = self.engine.step.optimizer_cost();
        let bytes = (optimizer.state_bytes + optimizer.temp_bytes).0;
        let held = (0..bytes).step_by(TRIAL_BYTES as usize).map(|at| {
            let part = TRIAL_BYTES.min(bytes - at);
            Tensor::<1>::empty([part.div_ceil(size_of::<f32>() as u64) as usize], &device)
        });
        let held: Vec<_> = held.collect();
        let mut read = held
            .iter()
            .map(|part| finite::read(part.clone().slice(0..1)));
        let had = read.try_for_each(|value| value.map(drop));
        drop(held);
        self.meter.trim();
        had
    }

    /// Fails if there is too little memory for the update; finds values that are not finite. A step with updates in its
    /// backward pass cannot be undone and is accepted.
    fn check(&self, parts: &mut Parts) -> Result<(), RunError> {
        if self.engine.step.update() == Update::InBackward {
            return self.check_finite(parts);
        }
        if let Some(error) = self.too_much(parts.peak) {
            return Err(error.into());
        }
        self.check_finite(parts)?;
        self.check_first_update()
    }

    /// An allocation that failed, or a step that took more than its budget.
    pub(super) fn too_much(&self, peak: PeakMemory) -> Option<RecordError> {
        if let Some(failure) = self.meter.failure() {
            return Some(RecordError::OutOfMemory(failure));
        }
        let in_use = peak.counted(self.job.count);
        let budget = self.budget.filter(|budget| in_use > *budget)?;
        Some(RecordError::OverBudget { in_use, budget })
    }

    /// Finds what is not finite, and fails where the settings stop there.
    fn check_finite(&self, parts: &mut Parts) -> Result<(), RunError> {
        let squares = self.optimizer.sum_of_squares(&self.model, &parts.gradients);
        parts.squares = squares.map(finite::read).transpose()?;
        let gradient = match parts.squares {
            Some(squares) if squares.is_finite() => None,
            _ => finite::first(&self.model, Some(&parts.gradients))?,
        };
        if parts.loss.is_finite() && gradient.is_none() {
            return Ok(());
        }
        let scaler = &self.optimizer.scaler;
        let lower_scale = scaler.lower().filter(|_| parts.loss.is_finite());
        let (step, per_epoch) = (self.progress.steps, self.batches.steps_per_epoch());
        // A path begins with the stage.
        let stage = gradient.as_ref().and_then(|path| {
            let stage = path.split('.').next()?.parse().ok()?;
            self.job.model.stage_names().into_iter().nth(stage)
        });
        let found = NonFinite {
            step: step + 1,
            epoch: step / per_epoch + 1,
            batch: step % per_epoch + 1,
            loss: parts.loss,
            gradient,
            stage,
            handled: match lower_scale {
                Some(_) => OnNonFinite::Skip,
                None => self.job.settings.on_nonfinite,
            },
            loss_scale: scaler.scale(),
            lower_scale,
            state: None,
        };
        if found.handled == OnNonFinite::Stop {
            return Err(RunError::NonFinite(Box::new(found)));
        }
        parts.nonfinite = Some(found);
        Ok(())
    }

    /// Updates the model, and returns the measurements of exchanging parameters between ranks that divide the updates.
    fn update(
        &mut self,
        rate: f64,
        gradients: GradientsParams,
        squares: Option<f64>,
    ) -> Result<Option<TimedExchange>, RecordError> {
        // The optimizer consumes the model, so that it can update parameters in place.
        let mut model = self.take_model();
        untie(&mut model);
        let largest = self.planned.largest();
        let needed = match self.progress.steps {
            0 => largest.first_update,
            _ => largest.update,
        };
        let step = &self.engine.step;
        let needed = needed.max(step.largest_update());
        let make_room = || step.make_room(needed);
        let optimizer = &mut self.optimizer;
        let model = optimizer.step_by_layer(rate, model, gradients, squares, make_room);
        let (model, sent) = match optimizer.shards() {
            None => (model, Ok(None)),
            Some(shards) => {
                let (model, sent) = shards.share(model);
                let owners = shards.owners();
                let sent = sent.map_err(|error| RecordError::PartlyUpdated {
                    updated: owners.iter().filter(|(id, _)| shards.keeps(*id)).count(),
                    of: owners.len(),
                    source: Box::new(error.into()),
                });
                (model, sent.map(Some))
            }
        };
        self.model = model;
        tie(&mut self.model);
        sent
    }

    pub(super) fn take_model(&mut self) -> Sequential<Stage> {
        replace(&mut self.model, Sequential::new(Vec::new()))
    }

    /// Undoes a step that has begun.
    fn abandon(&mut self, before: Before) {
        self.engine.step.set_watched(false);
        self.model = before.put_back(self.take_model());
        // The step's nodes in burn's graph would only be freed by the next backward pass.
        free_dead_nodes(&self.device);
        self.meter.trim();
    }
}

/// The update of a step whose last span was traced.
fn traced_update(last: Option<&SpanReading>, update: Option<&PhaseReading>) -> Option<SpanReading> {
    let (last, update) = last.zip(update)?;
    Some(SpanReading {
        memory: update.memory,
        done_at: last.done_at + Duration::from_secs_f64(update.seconds_s),
    })
}
