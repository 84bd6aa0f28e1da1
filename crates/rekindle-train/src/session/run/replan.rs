//! Runs a step, and the same batch again by another plan where memory is short.

use std::time::Instant;

use burn::module::Module;
use rekindle_plan::{Bytes, Seconds};

use super::{
    super::{Event, Infeasible, OutOfMemory, Planned, RunError, holders},
    Session,
    parts::Parts,
    reserve,
};
use crate::{
    data::ahead::Ahead, device::probe, finite, model::stage::tie, optimizer::AnyOptimizer,
    record::StepRecord, shortage::Shortage, tracker::TrackedPass,
};
use rekindle::{
    meter::Count,
    record::{PlanSummary, RecordError},
};

/// Number of tracked steps, if requested: the optimizer's state is allocated in the first.
const TRACKED_STEPS: usize = 3;

impl Session<'_> {
    /// Runs the next step, with smaller plans if there is too little memory.
    pub(super) fn step(&mut self, ahead: &mut Ahead) -> Result<(StepRecord, Parts), RunError> {
        loop {
            let next = self.progress.steps + 1;
            let parts = self.job.settings.parts();
            let parts = (0..parts).map(|part| ahead.take((next - 1) * parts + part));
            let tracked = self.job.track && self.steps_here() < TRACKED_STEPS;
            if tracked || self.traced == Some(next) {
                self.engine.step.set_watched(true);
            }
            match self.attempt(parts) {
                Ok((mut record, parts)) => {
                    // One in an update, which cannot be undone, used the reserve.
                    let short = self.too_much(parts.peak);
                    let short = short.as_ref().and_then(Shortage::of);
                    // What is held between steps is the same after each of them.
                    let waits = Instant::now();
                    ahead.wait();
                    record.step_s += Seconds(waits.elapsed().as_secs_f64());
                    if tracked {
                        // Before another plan is made, for the steps to come.
                        let changes = self.engine.step.changes();
                        let chain = &self.planned.staged.chain;
                        let passes = TrackedPass::all(next, changes, &parts.spans, chain);
                        (self.tell)(Event::Tracked(&passes));
                    }
                    if let Some(shortage) = short
                        && let Err(error) = self.plan_smaller(shortage)
                    {
                        if let Some(files) = &mut self.files {
                            files.stepped(&record, self.tell);
                        }
                        return Err(self.ended(error, true));
                    }
                    if let Some(by) = self.engine.step.take_growth() {
                        self.planned_by_step(by);
                    }
                    return Ok((record, parts));
                }
                Err(error) => {
                    let whole = !error.is_partly_updated();
                    let again = self.again(error);
                    if let Err(error) = self.job.ranks.settled(again) {
                        return Err(self.ended(error, whole));
                    }
                }
            }
        }
    }

    /// Prepares to run the same batch again, if possible; ranks that have not failed wait for those that plan again.
    fn again(&mut self, error: RunError) -> Result<(), RunError> {
        let step = self.progress.steps + 1;
        if let Some(shortage) = error.of_step().and_then(Shortage::of) {
            if !error.is_partly_updated() {
                return self.plan_smaller(shortage);
            }
            if self.job.ranks.is_alone() {
                return self.go_back(shortage, error);
            }
        }
        match error {
            RunError::Recorded(RecordError::Choosing { budget, needed })
                if self.traced == Some(step) =>
            {
                // A traced step waits after each span, so other operations are fused in it.
                self.traced = None;
                (self.tell)(Event::Noticed(&format!(
                    "step {step} is not traced: choosing kernels for that may take up to {needed}, more than {budget}"
                )));
                Ok(())
            }
            RunError::Recorded(RecordError::Choosing { budget, needed })
                if self.planned.summary.moves().is_some() =>
            {
                // The next plan keeps all tensors on the device.
                self.engine.step.forbid_offload();
                self.plan_smaller(Shortage::Choosing { needed, budget })
            }
            error if error.is_of_another_rank() && !error.is_partly_updated() => Ok(()),
            error => Err(error),
        }
    }

    /// Switches to a plan with less memory for the next step, or to one that keeps all tensors on the device where kernels for
    /// those that come back from the host cannot be chosen within the budget. The error says so if there is none.
    fn plan_smaller(&mut self, shortage: Shortage) -> Result<(), RunError> {
        // Reset the recorded failure; planning may also need a reserve.
        self.meter.keep_reserve(reserve(&self.planned));
        let plan = &self.planned.summary;
        let (before, peak) = (plan.budget, plan.predicted_peak);
        let left = match shortage {
            Shortage::Device { .. } => {
                // They cannot be read after a device ran out of memory in an update.
                if finite::first(&self.model.valid(), None).is_err() {
                    return Err(self.out_of_memory(Shortage::InUpdate, None));
                }
                self.left()
            }
            _ => None,
        };
        let context = match self.job.count {
            Count::Reserved => self.meter.context_bytes(),
            Count::InUse => Bytes::ZERO,
        };
        let Some(budget) = shortage.next_budget(before, peak, context, left) else {
            return Err(self.out_of_memory(shortage, None));
        };
        let planned = match self.engine.plan_again(self.job, budget) {
            Ok(planned) => planned,
            Err(RunError::Infeasible(Infeasible { smallest, .. })) => {
                return Err(match shortage {
                    Shortage::Choosing { needed, budget } => {
                        RecordError::Choosing { budget, needed }.into()
                    }
                    shortage => self.out_of_memory(shortage, Some(smallest)),
                });
            }
            Err(error) => return Err(error),
        };
        self.run_by(planned, self.progress.steps + 1, &shortage);
        Ok(())
    }

    /// Runs by a new plan from this step on.
    fn run_by(&mut self, planned: Planned, step: usize, shortage: &Shortage) {
        let old = &self.planned.summary;
        let before = old.budget.unwrap_or(old.predicted_peak);
        (self.tell)(Event::PlannedAgain {
            step,
            shortage,
            before,
            budget: planned.summary.budget.unwrap_or(before),
            planned: &planned,
        });
        self.meter.keep_reserve(reserve(&planned));
        let (plan, new) = (&self.plan, &planned.summary);
        self.plan = PlanSummary {
            budget: plan.budget,
            predicted_peak: plan.predicted_peak.max(new.predicted_peak),
            predicted_in_use: plan.predicted_in_use.max(new.predicted_in_use),
            ..new.clone()
        };
        self.replans += 1;
        let (replans, peak) = (self.replans, self.plan.predicted_peak);
        self.job.ranks.note(|record| {
            record.replans = replans;
            record.predicted_peak_bytes = peak;
        });
        // A timeline belongs to one plan.
        self.trace.clear();
        self.exchanges.clear();
        let next = self.progress.steps + 2;
        self.traced = self.traced.map(|_| next.min(self.job.settings.steps));
        self.planned = planned;
    }

    /// Goes back to the last snapshot after a failed step that has updated some parameters, and continues with a plan
    /// with less memory. Without a snapshot the run ends.
    fn go_back(&mut self, shortage: Shortage, error: RunError) -> Result<(), RunError> {
        let files = self.files.as_mut();
        let snapshot = files.map(|files| files.go_back(self.tell));
        let Some(mut snapshot) = snapshot.transpose()?.flatten() else {
            return Err(error);
        };
        let failed = self.progress.steps + 1;
        // Free the optimizer's state before the model's values and the earlier state are loaded.
        self.optimizer = AnyOptimizer::new(self.job.settings);
        self.model = snapshot.restore(self.take_model())?;
        // Reading creates separate tensors for tied weights.
        tie(&mut self.model);
        let optimizer = self.engine.optimizer(self.job.settings);
        self.optimizer = optimizer.restored(&mut snapshot, &self.model, &self.device)?;
        self.progress = snapshot.progress().clone();
        let to = self.progress.steps;
        (self.tell)(Event::Noticed(&format!(
            "step {failed} ran out of memory after some of its updates: back to the snapshot of step {to}"
        )));
        self.resumed_at = self.resumed_at.map(|step| step.min(to));
        self.plan_smaller(shortage)
    }

    /// Device memory available to a plan: the memory that the run holds, and free memory.
    pub(super) fn left(&self) -> Option<Bytes> {
        Some(self.memory_now().counted + self.free_now()?)
    }

    /// Device memory that is free now.
    pub(super) fn free_now(&self) -> Option<Bytes> {
        probe(self.id).ok()?.free_bytes
    }

    /// Reports that a step has planned itself again, within the same budget.
    fn planned_by_step(&mut self, by: Bytes) {
        if let Some(budget) = self.planned.summary.budget {
            let planned = self.engine.current(self.job);
            self.run_by(
                planned,
                self.progress.steps,
                &Shortage::Grown { by, budget },
            );
        }
    }

    pub(super) fn out_of_memory(&self, shortage: Shortage, smallest: Option<Bytes>) -> RunError {
        RunError::OutOfMemory(Box::new(OutOfMemory {
            step: self.progress.steps + 1,
            shortage,
            memory: self.meter.read(),
            context: self.meter.context_bytes(),
            device: probe(self.id).ok(),
            holders: holders(&self.planned),
            smallest,
            count: self.job.count,
        }))
    }
}
