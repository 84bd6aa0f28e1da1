//! The table of memory by phase.

use rekindle_plan::Seconds;
use rekindle_train::record::RunRecord;

use crate::table::{self, Cell, Table};

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

#[cfg(test)]
mod tests {
    use rekindle::meter::{MemoryReading, Phase, PhaseReading};
    use rekindle_plan::Bytes;
    use rekindle_train::record::PhasedStep;

    use super::{super::made_up_run, *};

    #[test]
    fn the_table_fits_80_columns() {
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
        let phases = [
            Phase::ZeroGrad,
            Phase::Forward,
            Phase::Loss,
            Phase::Backward,
            Phase::Optimizer,
        ];
        let steps = [1, 2, 300].map(|step| PhasedStep {
            step,
            phases: phases.map(reading).to_vec(),
        });
        let record = RunRecord {
            phases: steps.to_vec(),
            ..made_up_run()
        };
        let text = table(&record, true).to_string();
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}
