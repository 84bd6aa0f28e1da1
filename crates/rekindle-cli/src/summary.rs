//! Messages at the start and the end of a run.

pub mod phases;

use std::fmt::Write;

use rekindle::meter::Count;
use rekindle_plan::{
    Bytes, Seconds,
    graph::{Link, Rate},
};
use rekindle_train::{
    loss_scale::LossScale,
    optimizer_state::{OptimizerState, ShardedBecause, StatePlan},
    record::{EvalRecord, PoolRecord, RunRecord},
    session::Planned,
};

use crate::{
    table::{self, Cell, Table, several, thousands},
    terminal,
};

/// One line on the plan, before the first step.
pub fn plan_line(planned: &Planned) -> String {
    let stages = planned.chain.stages.len();
    let shape = match (&planned.segments, planned.operations) {
        (Some(segments), _) if segments.len() > 1 => {
            format!(
                "{} segments of {}",
                segments.len(),
                several(stages, "stage")
            )
        }
        (Some(_), _) => "nothing is recomputed".into(),
        (None, Some((again, operations))) => {
            format!(
                "{} of {} operations recomputed",
                thousands(again as u64),
                thousands(operations as u64)
            )
        }
        (None, None) => format!("nested recomputes of {}", several(stages, "stage")),
    };
    let budget = planned
        .budget
        .map(|budget| format!(", budget {budget}"))
        .unwrap_or_default();
    let exchange = planned
        .exchange
        .map(|one| format!(", of it exchange {}", one.taken.added()));
    let exchange = exchange.unwrap_or_default();
    format!(
        "plan `{}`: {shape}; predicted peak {}{budget}, step {}{exchange} (plain: {}, {})",
        planned.planner, planned.peak, planned.step, planned.plain_peak, planned.plain_step
    )
}

/// A line that parameters are updated in the backward pass, why, and at what cost, if the planner chose it.
pub fn in_backward_line(planned: &Planned) -> Option<String> {
    let because = planned.in_backward_because?;
    Some(format!(
        "in the backward pass: {because}. A step that fails after its first update cannot be undone: the run ends, and \
         `--resume` continues from its last snapshot (`--update after` avoids this)"
    ))
}

/// A line on how several ranks keep the optimizer's state, why, and the cost of the alternative.
pub fn state_line(planned: &Planned) -> Option<String> {
    let StatePlan {
        chosen,
        because,
        whole_bytes,
        sharded_bytes,
        sharded_s,
    } = planned.state?;
    let because = because.map(|short| {
        let ShardedBecause {
            rank,
            smallest_bytes,
        } = short;
        format!(": with a whole state rank {rank} needs at least {smallest_bytes}")
    });
    Some(match chosen {
        OptimizerState::Whole => format!(
            "whole, {whole_bytes} on each rank; sharded, this rank's is {sharded_bytes}, and sending parameters takes \
             {sharded_s} of the step"
        ),
        OptimizerState::Sharded => format!(
            "sharded{}. This rank keeps {sharded_bytes} instead of {whole_bytes}; sending parameters takes {sharded_s} of \
             the step",
            because.unwrap_or_default()
        ),
    })
}

/// What a plan keeps in host memory.
pub fn offload_line(planned: &Planned) -> Option<String> {
    let offload = planned.moves()?;
    Some(format!(
        "{} moved to host memory between forward and backward, at most {} at once; copying takes {} of the step",
        several(offload.tensors, "tensor"),
        offload.host_peak_bytes,
        offload.transfer_s
    ))
}

/// A link to host memory.
pub fn link(link: &Link) -> String {
    let rate = |rate: Rate| {
        let bytes = Bytes(rate.bytes_per_s as u64);
        format!("{bytes}/s after {}", rate.latency_s)
    };
    format!(
        "{} to the host, {} back; at most {} of host memory",
        rate(link.to_host),
        rate(link.to_device),
        link.host_bytes
    )
}

/// Warnings about a plan.
pub fn warnings(planned: &Planned) -> Vec<String> {
    let recomputes = planned.recomputes();
    let mut warnings = Vec::new();
    match planned.budget {
        Some(budget) if recomputes && planned.plain_peak <= budget => warnings.push(format!(
            "the plain run would fit the budget as well, with {} of {budget}",
            planned.plain_peak
        )),
        Some(budget) if !recomputes && planned.plain_peak <= budget => warnings.push(
            "the plain run fits this budget, so nothing is recomputed; a smaller budget would save memory"
                .into(),
        ),
        _ => {}
    }
    if recomputes && saving(planned.peak, planned.plain_peak).is_none() {
        warnings.push(format!(
            "this plan saves nothing: {} instead of the plain run's {}; most memory is not activations, or the largest \
             segment is nearly the whole model",
            planned.peak, planned.plain_peak
        ));
    }
    warnings
}

/// How a run ended: what was saved, predictions beside measurements, memory by phase. `verbose` shows the phases of more
/// steps.
pub fn closing(record: &RunRecord, verbose: bool) -> String {
    let mut text = format!("{}\n{}\n", saved(record), losses(record));
    if record.steps == 1 {
        text.push_str("Only one step ran: its time includes warming up.\n");
    }
    if let (Some(scale), LossScale::Dynamic) = (record.loss_scale, record.settings.loss_scale()) {
        let skipped = several(record.overflow_steps, "step");
        let _ = writeln!(
            text,
            "{skipped} skipped because gradients overflowed; the loss scale is {scale}."
        );
    }
    if let Some(PoolRecord { trims: trims @ 1.. }) = record.pools {
        let _ = writeln!(
            text,
            "The pools were trimmed {} to stay within the budget.",
            several(trims as usize, "time")
        );
    }
    let _ = writeln!(text, "\n{}", predictions(record));
    let _ = writeln!(text, "\n{}", phases::table(record, verbose));
    if let Some(growth) = &record.growth {
        let growth = format!("Memory grows: {growth}.");
        let _ = writeln!(text, "\n{}", terminal::wrapped(&growth, ""));
    }
    text
}

fn losses(record: &RunRecord) -> String {
    let (first, last, steps) = (record.first_loss, record.last_loss, record.steps);
    let steps = several(steps, "step");
    let evaluation = record
        .evaluation
        .as_ref()
        .map(|one| format!("; evaluation {}", evaluated(one)));
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

/// A predicted peak, and the measured one.
pub struct PredictedPeak {
    /// Which bytes it counts.
    pub name: &'static str,
    pub predicted: Bytes,
    pub measured: Bytes,
    /// What bounds it, if anything.
    pub budget: Option<Bytes>,
}

/// A run's peaks: the one that counts first.
pub fn peaks(record: &RunRecord) -> Vec<PredictedPeak> {
    let mut peaks = vec![PredictedPeak {
        name: match (&record.pools, record.count) {
            (None, _) => "peak memory",
            (Some(_), Count::Reserved) => "peak reserved",
            (Some(_), Count::InUse) => "peak in use",
        },
        predicted: record.predicted_peak_bytes,
        measured: record.measured_peak_bytes,
        budget: record.budget_bytes,
    }];
    if record.pools.is_some() && record.count == Count::Reserved {
        peaks.push(PredictedPeak {
            name: "in use between actions",
            predicted: record.in_use.predicted_bytes,
            measured: record.in_use.measured_bytes,
            budget: None,
        });
    }
    peaks
}

/// A run's times, each predicted and measured.
fn times(record: &RunRecord) -> Vec<(&'static str, Seconds, Seconds)> {
    let step = ("step time", record.predicted_step_s, record.measured_step_s);
    let exchange = record.exchange.map(|one| {
        let (predicted, measured) = (one.predicted_exchange_s, one.measured_exchange_s);
        ("of it exchange", predicted, measured)
    });
    [Some(step), exchange].into_iter().flatten().collect()
}

/// By how much a prediction is off, as a share of the measurement.
fn error(predicted: f64, measured: f64) -> String {
    format!("{:+.1}%", 100.0 * (predicted - measured) / measured)
}

/// Peaks and times, predicted and measured.
pub fn predictions(record: &RunRecord) -> Table {
    let mut table = table::table(["", "predicted", "measured", "error", "budget"], 1..5);
    for peak in peaks(record) {
        table.add_row([
            Cell::from(peak.name),
            Cell::bytes(peak.predicted),
            Cell::bytes(peak.measured),
            error(peak.predicted.0 as f64, peak.measured.0 as f64).into(),
            Cell::bytes(peak.budget),
        ]);
    }
    for (name, predicted, measured) in times(record) {
        table.add_row([
            Cell::from(name),
            Cell::seconds(predicted),
            Cell::seconds(measured),
            error(predicted.0, measured.0).into(),
        ]);
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

/// The closing line: the run against the plain run, both as measured or both as predicted.
pub fn saved(record: &RunRecord) -> String {
    let plain = &record.plain;
    let (peak, step, how) = if plain.measured {
        (record.measured_peak_bytes, record.measured_step_s, "")
    } else {
        (
            record.predicted_peak_bytes,
            record.predicted_step_s,
            "predicted ",
        )
    };
    let saving = saving(peak, plain.peak_bytes);
    if !record.recomputes && saving.is_none() {
        let text = format!(
            "Nothing was recomputed: this is the plain run. Peak {}; `--segments K` or `--budget SIZE` lowers it.",
            record.measured_peak_bytes
        );
        return terminal::wrapped(&text, "");
    }
    let told = match saving {
        None => format!(
            "Checkpointing saves nothing here: {how}peak {peak}, plain run {}.",
            plain.peak_bytes
        ),
        Some(saved) => format!(
            "{} saves {saved} ({:.0}%): {how}peak {peak} instead of {}, at {:.2}x the {how}step time.",
            match record.recomputes {
                true => "Checkpointing",
                false => "The plan recomputes nothing and",
            },
            100.0 * saved.0 as f64 / plain.peak_bytes.0 as f64,
            plain.peak_bytes,
            step.0 / plain.step_s.0,
        ),
    };
    match plain.measured {
        true => {
            let range = match plain.range_s {
                Some([quickest, slowest]) => {
                    format!(" (Plain steps took {quickest} to {slowest}.)")
                }
                None => String::new(),
            };
            terminal::wrapped(&format!("{told}{range}"), "")
        }
        false => terminal::wrapped(&format!("{told} (`--compare` measures the plain run.)"), ""),
    }
}

/// A run that nobody made, for tests of what is said of runs.
#[cfg(test)]
pub fn made_up_run() -> RunRecord {
    let peak = Bytes(90 << 20);
    let step = Seconds(0.3);
    RunRecord {
        format: rekindle_train::record::RUN_FORMAT.into(),
        name: "configs/a.toml".into(),
        device: "cpu".into(),
        hardware: "a processor".into(),
        model: rekindle_train::model::spec::ModelSpec {
            input: rekindle_train::model::spec::SampleShape::float([4]),
            layers: Vec::new(),
        },
        settings: rekindle_train::settings::TrainSettings {
            update: rekindle_train::update::UpdateChoice::After,
            ..Default::default()
        },
        param_count: 0,
        update: rekindle::record::Update::After,
        offload: None,
        exchange: None,
        optimizer_state: None,
        planner: "segments".into(),
        segments: None,
        recomputes: true,
        stages: Vec::new(),
        budget_bytes: None,
        count: Count::InUse,
        predicted_peak_bytes: peak,
        measured_peak_bytes: peak,
        in_use: rekindle_train::record::PeakInUse {
            predicted_bytes: peak,
            measured_bytes: peak,
        },
        pools: None,
        whole_gpu_used_bytes: None,
        predicted_step_s: step,
        measured_step_s: step,
        step_range_s: None,
        plain: rekindle_train::record::PlainRun {
            peak_bytes: peak,
            step_s: step,
            measured: false,
            range_s: None,
        },
        first_loss: 1.0,
        last_loss: 0.5,
        steps: 2,
        batch: 8,
        ranks: Vec::new(),
        resumed_at: None,
        interrupted: false,
        nonfinite_steps: 0,
        overflow_steps: 0,
        loss_scale: None,
        replans: 0,
        evaluation: None,
        best_evaluation: None,
        growth: None,
        phases: Vec::new(),
        timeline: None,
    }
}

#[cfg(test)]
mod tests {
    use rekindle_train::record::MemoryGrowth;

    use super::*;

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
