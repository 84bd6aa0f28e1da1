//! Messages at the start and the end of a run.

use std::fmt::Write;

use rekindle::meter::Count;
use rekindle_plan::{Bytes, Seconds};
use rekindle_train::{
    loss_scale::LossScale,
    optimizer_state::OptimizerState,
    record::{EvalRecord, PoolRecord, RunRecord},
    session::Planned,
};

use crate::{
    table::{self, Cell, Table, several, thousands},
    terminal,
};

/// One line on the plan, before the first step.
pub fn plan_line(planned: &Planned) -> String {
    let stages = several(planned.chain.stages.len(), "stage");
    let shape = match (&planned.segments, planned.operations) {
        (Some(segments), _) if segments.len() > 1 => {
            format!("{} segments of {stages}", segments.len())
        }
        (Some(_), _) => "nothing is recomputed".into(),
        (None, Some((again, operations))) => format!(
            "{} of {} operations recomputed",
            thousands(again as u64),
            thousands(operations as u64)
        ),
        (None, None) => format!("nested recomputes of {stages}"),
    };
    let budget = planned.budget.map(|budget| format!(", budget {budget}"));
    let exchange = planned.exchange;
    let exchange = exchange.map(|one| format!(", of it exchange {}", one.taken.added()));
    format!(
        "plan `{}`: {shape}; predicted peak {}{}, step {}{} (plain: {}, {})",
        planned.planner,
        planned.peak,
        budget.unwrap_or_default(),
        planned.step,
        exchange.unwrap_or_default(),
        planned.plain_peak,
        planned.plain_step
    )
}

/// What else a plan does: to host memory, to the optimizer's state, to updates.
pub fn notes(planned: &Planned) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(offload) = planned.moves() {
        notes.push(format!(
            "{} moved to host memory, {} at once; copying takes {} of the step",
            several(offload.tensors, "tensor"),
            offload.host_peak_bytes,
            offload.transfer_s
        ));
    }
    if let Some(state) = planned.state {
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
    if let Some(because) = planned.in_backward_because {
        notes.push(format!(
            "updates in the backward pass: {because}; `--update after` undoes failed steps"
        ));
    }
    notes
}

/// A warning about a plan.
pub fn warning(planned: &Planned) -> Option<String> {
    let (recomputes, plain) = (planned.recomputes(), planned.plain_peak);
    match planned.budget {
        Some(budget) if plain <= budget => Some(match recomputes {
            true => format!("the plain run would fit the budget as well, with {plain} of {budget}"),
            false => "the plain run fits this budget, so nothing is recomputed".into(),
        }),
        _ if recomputes && saving(planned.peak, plain).is_none() => Some(format!(
            "this plan saves nothing: {} instead of the plain run's {plain}",
            planned.peak
        )),
        _ => None,
    }
}

/// How a run ended: what was saved, predictions beside measurements, memory by phase. `verbose` shows the phases of more
/// steps.
pub fn closing(record: &RunRecord, verbose: bool) -> String {
    let verdict = terminal::wrapped(&saved(record), "");
    let mut text = format!("{verdict}\n{}\n", losses(record));
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
    let (predictions, phases) = (predictions(record), phases(record, verbose));
    let _ = writeln!(text, "\n{predictions}\n\n{phases}");
    if let Some(growth) = &record.growth {
        let _ = writeln!(text, "\nMemory grows: {growth}.");
    }
    text
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
    let mut table = table::table(["", "predicted", "measured", "error", "budget"], 1..5);
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
    let (predicted, measured) = (record.predicted_peak_bytes, record.measured_peak_bytes);
    peak(counted, predicted, measured, record.budget_bytes);
    if reserved {
        let in_use = record.in_use;
        let name = "in use between actions";
        peak(name, in_use.predicted_bytes, in_use.measured_bytes, None);
    }
    let mut time = |name: &str, predicted: Seconds, measured: Seconds| {
        table.add_row([
            Cell::from(name),
            Cell::seconds(predicted),
            Cell::seconds(measured),
            error(predicted.0, measured.0).into(),
        ]);
    };
    time("step time", record.predicted_step_s, record.measured_step_s);
    if let Some(one) = record.exchange {
        let (predicted, measured) = (one.predicted_exchange_s, one.measured_exchange_s);
        time("of it exchange", predicted, measured);
    }
    table
}

/// Memory by phase of the last step; `all`: of the first steps as well.
pub fn phases(record: &RunRecord, all: bool) -> Table {
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

/// Share of the plain peak below which a saving is ignored: peaks of equal runs differ by as much.
const NOTHING: f64 = 0.01;

/// The saving compared with the plain run's peak, if it is large enough.
fn saving(peak: Bytes, plain: Bytes) -> Option<Bytes> {
    let saved = plain - peak;
    (saved.0 as f64 > NOTHING * plain.0 as f64).then_some(saved)
}

/// The verdict: the run against the plain run, both as measured or both as predicted.
pub fn saved(record: &RunRecord) -> String {
    let (plain, plain_peak) = (&record.plain, record.plain.peak_bytes);
    let (peak, step, how, compare) = match plain.measured {
        true => (record.measured_peak_bytes, record.measured_step_s, "", ""),
        false => (
            record.predicted_peak_bytes,
            record.predicted_step_s,
            "predicted ",
            " (`--compare` measures the plain run.)",
        ),
    };
    match saving(peak, plain_peak) {
        None if !record.recomputes => format!(
            "Nothing was recomputed: this is the plain run, peak {}. `rekindle plan {} --frontier` lists smaller peaks.",
            record.measured_peak_bytes, record.name
        ),
        None => format!(
            "Checkpointing saves nothing here: {how}peak {peak}, plain run {plain_peak}.{compare}"
        ),
        Some(saved) => format!(
            "{} saves {saved} ({:.0}%): {how}peak {peak} instead of {plain_peak}, at {:.2}x the {how}step time.{compare}",
            match record.recomputes {
                true => "Checkpointing",
                false => "The plan recomputes nothing and",
            },
            100.0 * saved.0 as f64 / plain_peak.0 as f64,
            step.0 / plain.step_s.0,
        ),
    }
}

/// The run that `docs/json.md` has as an example, for tests of what is said of runs.
#[cfg(test)]
pub fn made_up_run() -> RunRecord {
    let examples = include_str!("../../../docs/json.md")
        .split("```json\n")
        .skip(1);
    let mut examples = examples.filter_map(|example| example.split("```").next());
    let run = examples.find(|example| example.contains(rekindle_train::record::RUN_FORMAT));
    RunRecord::from_json(run.expect("an example").as_bytes()).expect("a record")
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
        let said = closing(&run, false).replace('\n', " ");
        let growth = "Memory grows: 1.0 MiB in use after step 10, 2.0 MiB after step 60.";
        assert!(said.contains(growth), "{said}");
        assert!(!closing(&made_up_run(), false).contains("Memory grows"));
    }
}
