//! Messages at the start and the end of a run.

use std::{fmt::Write, path::Path};

use rekindle::{
    meter::Count,
    record::{OptimizerState, PlanSummary},
};
use rekindle_plan::{Bytes, Seconds, Stage};
use rekindle_train::{
    record::{EvalRecord, PoolRecord, Resident, RunRecord, Slowdown},
    settings::LossScale,
};

use crate::{
    plot::timeline::TIMELINE,
    table::{self, Cell, Table, several, thousands},
    terminal,
};

/// What each stage takes.
pub fn stages(stages: &[Stage]) -> Table {
    let mut table = table::table("stage|forward|backward|output|saved|temp|gradients", 1..7);
    // Neighbouring stages that were measured together have the same costs and share a row.
    let same = |a: &Stage, b: &Stage| {
        (a.forward_s, a.backward_s, a.saved_bytes) == (b.forward_s, b.backward_s, b.saved_bytes)
    };
    for group in stages.chunk_by(same) {
        let stage = &group[0];
        let name = match group.len() {
            1 => stage.name.clone(),
            count => format!("{} x {count}", stage.name),
        };
        let temp = stage
            .forward_temp_bytes
            .max(stage.tracked_temp_bytes)
            .max(stage.backward_temp_bytes);
        table.add_row([
            Cell::from(name),
            Cell::seconds(stage.forward_s),
            Cell::seconds(stage.backward_s),
            Cell::bytes(stage.output_bytes),
            Cell::bytes(stage.saved_bytes),
            Cell::bytes(temp),
            Cell::bytes(stage.grad_bytes),
        ]);
    }
    table
}

/// One line on the plan of a step in so many parts of its batch.
pub fn plan_line(plan: &PlanSummary, parts: usize) -> String {
    let shape = match plan.segments.as_deref() {
        Some(segments @ [_, .., (_, last)]) => {
            let stages = several(last.0 + 1, "stage");
            format!("{} segments of {stages}", segments.len())
        }
        Some(_) => "nothing is recomputed".into(),
        None => format!(
            "{} of {} operations recomputed",
            thousands(plan.repeated as u64),
            thousands(plan.operations as u64)
        ),
    };
    let budget = plan.budget.map(|budget| format!(", budget {budget}"));
    let parts = (parts > 1).then(|| format!(" in {parts} parts of a batch"));
    let exchange = plan.exchange;
    let exchange = exchange.map(|one| format!(", of it exchange {}", one.taken.added()));
    format!(
        "plan `{}`{}: {shape}; predicted peak {}{}, step {}{} (plain: {}, {})",
        plan.planner,
        parts.unwrap_or_default(),
        plan.predicted_peak,
        budget.unwrap_or_default(),
        plan.predicted_time,
        exchange.unwrap_or_default(),
        plan.plain_peak,
        plan.plain_time
    )
}

/// What else a plan does: to host memory, to the optimizer's state, to updates.
pub fn notes(plan: &PlanSummary) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(offload) = plan.moves() {
        notes.push(format!(
            "{} moved to host memory, {} at once; copying takes {} of the step",
            several(offload.tensors, "tensor"),
            offload.host_peak_bytes,
            offload.transfer_s
        ));
    }
    if let Some(offload) = plan.state_on_host() {
        notes.push(format!(
            "optimizer state on the host: {} between updates; moving it takes {} of the step",
            offload.state_bytes, offload.state_s
        ));
    }
    if let Some(state) = plan.state {
        let (whole, sharded) = (state.whole_bytes, state.sharded_bytes);
        let because = state.because.map(|short| {
            let (rank, smallest) = (short.rank, short.smallest_bytes);
            format!(": rank {rank} needs {smallest} with a whole one")
        });
        notes.push(match state.chosen {
            OptimizerState::Whole => {
                format!("optimizer state: whole, {whole} on each rank; sharded it takes {sharded}")
            }
            OptimizerState::Sharded => format!(
                "optimizer state: sharded, {sharded} instead of {whole}{}",
                because.unwrap_or_default()
            ),
        });
    }
    if let Some(because) = plan.in_backward_because {
        notes.push(format!(
            "updates in the backward pass: {because}; `--update after` undoes failed steps"
        ));
    }
    notes
}

/// How a run ended: predictions beside measurements, memory by phase, its folder, and last what was saved.
pub fn closing(record: &RunRecord, folder: Option<&Path>) -> String {
    let mut text = format!("{}\n", predictions(record));
    for sentence in beside(record) {
        let _ = writeln!(text, "{sentence}");
    }
    let _ = writeln!(text, "\n{}\n", phases(record, false));
    if let Some(growth) = &record.growth {
        let _ = writeln!(text, "Memory grows: {growth}.");
    }
    if let (Some(scale), LossScale::Dynamic) = (record.loss_scale, record.settings.loss_scale()) {
        let skipped = several(record.overflow_steps, "step");
        let _ = writeln!(
            text,
            "{skipped} skipped because gradients overflowed; the loss scale is {scale}."
        );
    }
    if let Some(PoolRecord { trims: trims @ 1.. }) = record.pools {
        let trims = several(trims as usize, "time");
        let _ = writeln!(text, "The pools were trimmed {trims} to hold the budget.");
    }
    let _ = writeln!(text, "{}", losses(record));
    if let Some(folder) = folder {
        let folder = folder.display();
        let page = format!(
            "`rekindle report {folder}` makes a page of it; one step is drawn in {folder}/{TIMELINE}."
        );
        let _ = writeln!(text, "{}", terminal::wrapped(&page, ""));
    }
    text + &terminal::wrapped(&saved(record), "")
}

/// What the row `resident` is, and how long steps took.
pub fn beside(record: &RunRecord) -> Vec<String> {
    let resident = record.resident.map(|Resident { beside_bytes, .. }| {
        format!("A budget bounds the heap; `resident` adds code and stacks, {beside_bytes}.")
    });
    let range = record.measured.range;
    let steps = range.map(|[least, most]| format!("Half of the steps took {least} to {most}."));
    resident.into_iter().chain(steps).collect()
}

/// The first and the last loss, and the last evaluation.
pub fn losses(record: &RunRecord) -> String {
    let (first, last, steps) = (record.first_loss, record.last_loss, record.steps);
    let steps = several(steps, "step");
    let evaluation = record.evaluation.as_ref();
    let evaluation = evaluation.map(|one| format!("; evaluation {}", evaluated(one)));
    let evaluation = evaluation.unwrap_or_default();
    format!("Loss {first:.4} -> {last:.4} in {steps}{evaluation}.")
}

/// The loss of an evaluation, and its accuracy where it has one.
pub fn evaluated(evaluation: &EvalRecord) -> String {
    let accuracy = evaluation
        .accuracy
        .map(|share| format!(", accuracy {:.1}%", 100.0 * share));
    format!(
        "loss {:.4}{}",
        evaluation.loss,
        accuracy.unwrap_or_default()
    )
}

/// By how much a prediction is off, as a share of the measurement.
pub fn error(predicted: f64, measured: f64) -> String {
    format!("{:+.1}%", 100.0 * (predicted - measured) / measured)
}

/// Peaks and times, predicted and measured, the peak that counts first.
pub fn predictions(record: &RunRecord) -> Table {
    let mut table = table::table("|predicted|measured|error|budget", 1..5);
    let mut peak = |name: &str, predicted: Bytes, measured: Bytes, budget| {
        table.add_row([
            Cell::from(name),
            Cell::bytes(predicted),
            Cell::bytes(measured),
            error(predicted.0 as f64, measured.0 as f64).into(),
            Cell::bytes(budget),
        ]);
    };
    let reserved = record.pools.is_some() && record.count == Count::Reserved;
    let counted = match record.pools {
        None => "peak memory",
        Some(_) if reserved => "peak reserved",
        Some(_) => "peak in use",
    };
    let (plan, measured) = (&record.plan, &record.measured);
    peak(counted, plan.predicted_peak, measured.peak, plan.budget);
    if reserved {
        let name = "in use between actions";
        peak(name, plan.predicted_in_use, measured.in_use, None);
    }
    if let Some(Resident {
        beside_bytes: beside,
        peak_bytes,
    }) = record.resident
    {
        let budget = plan.budget.map(|budget| budget + beside);
        peak("resident", plan.predicted_peak + beside, peak_bytes, budget);
    }
    let mut time = |name: &str, predicted: Seconds, measured: Seconds| {
        table.add_row([
            Cell::from(name),
            Cell::seconds(predicted),
            Cell::seconds(measured),
            error(predicted.0, measured.0).into(),
        ]);
    };
    time("step time", plan.predicted_time, measured.step);
    if let (Some(predicted), Some(measured)) = (plan.exchange, record.measured_exchange_s) {
        time("of it exchange", predicted.taken.added(), measured);
    }
    table
}

/// Memory by phase of the last step; `all`: of the first steps as well.
pub fn phases(record: &RunRecord, all: bool) -> Table {
    let header = "step|phase|in use|peak in use|reserved|peak reserved|time";
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
                reading.phase.into(),
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

/// Share of the plain peak below which a saving is ignored: peaks of equal runs differ by as much.
const NOTHING: f64 = 0.01;

/// The verdict: the run against the plain run, both as measured or both as predicted.
pub fn saved(record: &RunRecord) -> String {
    let (plan, measured) = (&record.plan, &record.measured);
    let turns = Slowdown::of(&record.turns);
    let (peak, plain_peak, step) = match record.plain.zip(turns) {
        Some((plain, slowdown)) => (measured.peak, plain.peak, slowdown.to_string()),
        None => {
            let step = format!("{:.2}x the predicted step time", plan.slowdown());
            (plan.predicted_peak, plan.plain_peak, step)
        }
    };
    let (how, compare) = match turns {
        Some(_) => ("", ""),
        None => ("predicted ", " (`--compare` measures the plain run.)"),
    };
    let saved = plain_peak - peak;
    let saved = (saved.0 as f64 > NOTHING * plain_peak.0 as f64).then_some(saved);
    match saved {
        None if plan.repeated == 0 => format!(
            "Nothing was recomputed: this is the plain run, peak {}. `rekindle plan {} --frontier` lists smaller peaks.",
            measured.peak, record.name
        ),
        None => format!(
            "Checkpointing saves nothing here: {how}peak {peak}, plain run {plain_peak}.{compare}"
        ),
        Some(saved) => format!(
            "{} saves {saved} ({:.0}%): {how}peak {peak} instead of {plain_peak}, at {step}.{compare}",
            match plan.repeated > 0 {
                true => "Checkpointing",
                false => "The plan recomputes nothing and",
            },
            100.0 * saved.0 as f64 / plain_peak.0 as f64,
        ),
    }
}

/// The run among `docs/examples`, for tests of what is said of runs.
#[cfg(test)]
pub fn made_up_run() -> RunRecord {
    let run = include_bytes!("../../../docs/examples/run.json");
    RunRecord::from_json(run).expect("a record")
}

#[cfg(test)]
mod tests {
    use rekindle::meter::{MemoryReading, Phase, PhaseReading};
    use rekindle_train::record::{MemoryGrowth, PhasedStep};

    use super::*;

    #[test]
    fn the_table_of_phases_fits_80_columns() {
        let reading = |phase| PhaseReading {
            phase,
            seconds_s: 0.1,
            memory: MemoryReading {
                in_use_bytes: Bytes(111 << 20),
                peak_in_use_bytes: Bytes(112 << 20),
                reserved_bytes: Some(Bytes(128 << 20)),
                peak_reserved_bytes: Some(Bytes(128 << 20)),
            },
        };
        let phases = [Phase::ZeroGrad, Phase::Forward, Phase::Optimizer].map(reading);
        let record = RunRecord {
            phases: vec![PhasedStep {
                step: 300,
                phases: phases.to_vec(),
            }],
            ..made_up_run()
        };
        let text = super::phases(&record, true).to_string();
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }

    #[test]
    fn memory_that_grows_is_told() {
        let run = RunRecord {
            growth: Some(MemoryGrowth {
                first_step: 10,
                first_bytes: Bytes(1 << 20),
                last_step: 60,
                last_bytes: Bytes(2 << 20),
            }),
            ..made_up_run()
        };
        let said = closing(&run, None).replace('\n', " ");
        let growth = "Memory grows: 1.0 MiB in use after step 10, 2.0 MiB after step 60.";
        assert!(said.contains(growth), "{said}");
        assert!(!closing(&made_up_run(), None).contains("Memory grows"));
    }
}
