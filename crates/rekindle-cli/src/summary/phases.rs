//! Memory by phase: the table of the last step, optionally also of the first ones, and explanations of surprising
//! values.
//!
//! An explanation is only given if the record's numbers support it.

#[cfg(test)]
mod tests;

use rekindle::{
    meter::{Phase, PhaseReading},
    record::Update,
};
use rekindle_plan::{Bytes, Seconds};
use rekindle_train::{
    optimizer_state::OptimizerState,
    record::{PhasedStep, RunRecord},
};

use crate::table::{self, Cell, Table, several};

/// Differences below this share of the total, or below [`FEW_BYTES`], are not explained.
const FEW_PERCENT: f64 = 0.02;
/// Bookkeeping and scratch memory of threads vary by this much.
const FEW_BYTES: u64 = 64 * 1024;
/// Minimum share of unused reserved bytes that is explained.
const IDLE: f64 = 0.1;

/// Memory by phase of the last step; `all`: of the first steps as well.
pub fn table(record: &RunRecord, all: bool) -> Table {
    let header = [
        "step",
        "phase",
        "in use",
        "peak in use",
        "reserved",
        "peak reserved",
        "time",
    ];
    let mut table = table::table(header, 2..7);
    let first = match all {
        true => 0,
        false => record.phases.len().saturating_sub(1),
    };
    for step in &record.phases[first..] {
        for (index, reading) in step.phases.iter().enumerate() {
            let memory = &reading.memory;
            table.add_row([
                Cell::text((index == 0).then(|| step.step.to_string())),
                reading.phase.name().into(),
                Cell::bytes(memory.in_use_bytes),
                Cell::bytes(memory.peak_in_use_bytes),
                Cell::bytes(memory.reserved_bytes),
                Cell::bytes(memory.peak_reserved_bytes),
                Cell::seconds(Seconds(reading.seconds_s)),
            ]);
        }
    }
    table
}

/// Explanations of surprising values in the table, if they apply to this run; with `all`, also of the bytes held after
/// the backward pass.
pub fn sentences(record: &RunRecord, all: bool) -> Vec<String> {
    [
        peak_phase(record),
        second_step(record),
        all.then(|| after_backward(record)).flatten(),
        idle_pools(record),
        growth(record),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Parameters that training changes. Their gradients are as large.
fn param_bytes(record: &RunRecord) -> Bytes {
    record.stages.iter().map(|stage| stage.param_bytes).sum()
}

/// Bytes of the optimizer's state, where all of it is here: a rank's share of it is known to its plan alone.
fn state_bytes(record: &RunRecord) -> Option<Bytes> {
    let chosen = record.optimizer_state.map(|state| state.chosen);
    let whole = chosen != Some(OptimizerState::Sharded);
    whole.then(|| record.settings.state_bytes(record.param_count))
}

fn numbered(record: &RunRecord, number: usize) -> Option<&PhasedStep> {
    record.phases.iter().find(|step| step.step == number)
}

/// The phase with the highest peak, the first of equals.
fn highest(step: &PhasedStep) -> Option<&PhaseReading> {
    let peak = |reading: &PhaseReading| reading.memory.peak_in_use_bytes;
    let most = step.phases.iter().map(peak).max()?;
    step.phases.iter().find(|reading| peak(reading) == most)
}

fn after(step: &PhasedStep, phase: Phase) -> Option<Bytes> {
    let reading = step
        .phases
        .iter()
        .rev()
        .find(|reading| reading.phase == phase)?;
    Some(reading.memory.in_use_bytes)
}

fn alike(a: Bytes, b: Bytes) -> bool {
    let room = (a.max(b).0 as f64 * FEW_PERCENT) as u64;
    a.0.abs_diff(b.0) <= room.max(FEW_BYTES)
}

/// Where the peak of the last step comes from.
fn peak_phase(record: &RunRecord) -> Option<String> {
    let step = record.phases.last()?;
    let reading = highest(step)?;
    let peak = reading.memory.peak_in_use_bytes;
    let number = step.step;
    let recomputes = record.stages.iter().any(|stage| stage.forwards > 1);
    Some(match reading.phase {
        Phase::Forward | Phase::Loss => format!(
            "Step {number} peaks at {peak} in the {}: everything kept for the backward pass is held then.",
            reading.phase.name()
        ),
        Phase::Backward if recomputes => format!(
            "Step {number} peaks at {peak} in the backward pass: recomputed activations are held in addition to kept ones."
        ),
        Phase::Backward => format!(
            "Step {number} peaks at {peak} in the backward pass: a layer's gradients are allocated before its activations are freed."
        ),
        Phase::Optimizer => format!(
            "Step {number} peaks at {peak} in the optimizer: gradients, state and copies of parameters, which no \
             schedule reduces."
        ),
        Phase::ZeroGrad => return None,
    })
}

/// Why the peak comes at the second step.
fn second_step(record: &RunRecord) -> Option<String> {
    let peak = |step: &PhasedStep| Some(highest(step)?.memory.peak_in_use_bytes);
    let (first, second) = (peak(numbered(record, 1)?)?, peak(numbered(record, 2)?)?);
    let state = state_bytes(record)?;
    if state == Bytes::ZERO || second <= first || alike(first, second) {
        return None;
    }
    let more = second - first;
    Some(if more.0 as f64 > (1.0 + FEW_PERCENT) * state.0 as f64 {
        format!(
            "Step 2 peaks {more} above step 1: {state} of it is the optimizer's state, which appears when step 1 ends."
        )
    } else {
        format!(
            "Step 2 peaks {more} above step 1: when step 1 ends, the optimizer's state appears, {state}."
        )
    })
}

/// What is still in use once the backward is over.
fn after_backward(record: &RunRecord) -> Option<String> {
    let step = record.phases.last()?;
    let in_use = after(step, Phase::Backward)?;
    let parameters = param_bytes(record);
    let updated = record.update == Update::InBackward;
    // Else the state appears when the first step ends.
    let state = if step.step == 1 && !updated {
        Bytes::ZERO
    } else {
        state_bytes(record)?
    };
    let (gradients, said) = match updated {
        true => (Bytes::ZERO, "no gradients".to_owned()),
        false => (parameters, format!("{parameters} of their gradients")),
    };
    let named = parameters + gradients + state;
    let rest = in_use.checked_sub(named)?;
    let state = match state {
        Bytes::ZERO => String::new(),
        state => format!(", {state} of the optimizer's state"),
    };
    Some(format!(
        "After the backward pass of step {}, {in_use} are in use: {parameters} of parameters, {said}{state}, and {rest} of data, statistics, kernels' buffers and the program's own memory.",
        step.step
    ))
}

/// Why reserved bytes stay high.
fn idle_pools(record: &RunRecord) -> Option<String> {
    let last = record.phases.last()?.phases.last()?.memory;
    let (in_use, reserved) = (last.in_use_bytes, last.reserved_bytes?);
    let idle = reserved.checked_sub(in_use)?;
    if idle.0 <= FEW_BYTES || (idle.0 as f64) < IDLE * reserved.0 as f64 {
        return None;
    }
    let trims = match record.pools.as_ref().map_or(0, |pools| pools.trims) {
        0 => "they were not trimmed in this run; a budget makes the run trim them".to_owned(),
        times => format!(
            "they were trimmed {}, only where the budget required it",
            several(times as usize, "time")
        ),
    };
    Some(format!(
        "Reserved stays at {reserved} although {in_use} are in use: the pools keep {idle} for the next step; {trims}."
    ))
}

/// Whether memory grows from step to step.
fn growth(record: &RunRecord) -> Option<String> {
    if let Some(growth) = &record.growth {
        return Some(format!("Memory grows: {growth}."));
    }
    let last = record.phases.last()?;
    let earlier = record.phases.iter().rfind(|step| step.step < last.step)?;
    // From the second step on all state is there.
    if earlier.step < 2 {
        return None;
    }
    let (before, now) = (
        after(earlier, Phase::Optimizer)?,
        after(last, Phase::Optimizer)?,
    );
    let (from, to) = (earlier.step, last.step);
    Some(if alike(before, now) {
        format!(
            "Memory does not grow: {before} are in use after step {from}, {now} after step {to}."
        )
    } else if now > before {
        let a_step = Bytes((now - before).0 / (to - from) as u64);
        format!(
            "Memory grows: {before} are in use after step {from}, {now} after step {to}, {a_step} more a step."
        )
    } else {
        format!("Memory shrank: {before} are in use after step {from}, {now} after step {to}.")
    })
}
