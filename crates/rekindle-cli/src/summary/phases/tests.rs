//! Made-up runs: what is said of each, and what is not.

use rekindle::meter::{MemoryReading, Phase, PhaseReading};
use rekindle_plan::{Bytes, Seconds};
use rekindle_train::{
    record::{MemoryGrowth, PhasedStep, PoolRecord, RunRecord, StageRecord},
    settings::{OptimizerSettings, TrainSettings},
};

use super::{super::made_up_run, sentences, table};

const MIB: u64 = 1 << 20;

/// A stage with 10 MiB of parameters. Steps are given as what is in use after each phase, and the peak in it, in MiB.
fn record(
    optimizer: OptimizerSettings,
    forwards: usize,
    steps: &[(usize, [(u64, u64); 5])],
) -> RunRecord {
    let mebibytes = |count: u64| Bytes(count * MIB);
    let phases = [
        Phase::ZeroGrad,
        Phase::Forward,
        Phase::Loss,
        Phase::Backward,
        Phase::Optimizer,
    ];
    let reading = |(phase, (in_use, peak))| PhaseReading {
        phase,
        seconds_s: 0.1,
        memory: MemoryReading {
            in_use_bytes: mebibytes(in_use),
            peak_in_use_bytes: mebibytes(peak),
            ..MemoryReading::default()
        },
    };
    let run = made_up_run();
    RunRecord {
        settings: TrainSettings {
            optimizer,
            ..run.settings
        },
        param_count: 10 * MIB / 4,
        stages: vec![StageRecord {
            name: "linear 0".into(),
            forwards,
            forward_s: Seconds(0.1),
            backward_s: Seconds(0.2),
            output_bytes: mebibytes(1),
            saved_bytes: mebibytes(1),
            param_bytes: mebibytes(10),
        }],
        phases: steps
            .iter()
            .map(|(step, readings)| PhasedStep {
                step: *step,
                phases: phases.into_iter().zip(*readings).map(reading).collect(),
            })
            .collect(),
        ..run
    }
}

const ADAM: OptimizerSettings = OptimizerSettings::Adam {
    betas: [0.9, 0.999],
    epsilon: 1e-8,
    weight_decay: 0.0,
};

const SGD: OptimizerSettings = OptimizerSettings::Sgd {
    momentum: 0.0,
    weight_decay: 0.0,
};

/// Ten of parameters, ten of gradients, twenty of state, one of data; eighty of activations.
fn adam() -> RunRecord {
    let first = [(11, 11), (91, 91), (91, 92), (21, 93), (31, 33)];
    let later = [(31, 31), (111, 111), (111, 112), (41, 113), (31, 41)];
    record(ADAM, 1, &[(1, first), (2, later), (3, later), (300, later)])
}

#[test]
fn adam_on_the_processor() {
    insta::assert_snapshot!(sentences(&adam(), true).join("\n"));
}

#[test]
fn pools_that_keep_pages_and_memory_that_grows() {
    let mut run = adam();
    run.pools = Some(PoolRecord { trims: 0 });
    for (index, step) in run.phases.iter_mut().enumerate() {
        for reading in &mut step.phases {
            reading.memory.reserved_bytes = Some(Bytes(128 * MIB));
            reading.memory.peak_reserved_bytes = Some(Bytes(128 * MIB));
            if index == 3 {
                reading.memory.in_use_bytes.0 += 6 * MIB;
            }
        }
    }
    insta::assert_snapshot!(sentences(&run, true).join("\n"));
}

#[test]
fn growth_that_was_noticed_has_both_numbers() {
    let mut run = adam();
    run.growth = Some(MemoryGrowth {
        first_step: 10,
        first_bytes: Bytes(31 * MIB),
        last_step: 60,
        last_bytes: Bytes(36 * MIB),
    });
    insta::assert_snapshot!(sentences(&run, true).last().expect("a sentence"), @"Memory grows: 31.0 MiB in use after step 10, 36.0 MiB after step 60.");
}

/// No state, so no second peak; steps all alike; the backward is where the recomputes are.
#[test]
fn plain_descent_in_segments() {
    let step = [(11, 11), (31, 41), (41, 42), (21, 61), (11, 21)];
    let run = record(SGD, 2, &[(1, step), (2, step), (3, step), (9, step)]);
    insta::assert_snapshot!(sentences(&run, true).join("\n"));
}

#[test]
fn nothing_is_said_of_steps_that_are_not_there() {
    assert!(sentences(&record(ADAM, 1, &[]), true).is_empty());
    let one = [(11, 11), (91, 91), (91, 92), (21, 93), (31, 33)];
    let said = sentences(&record(ADAM, 1, &[(1, one)]), true).join(" ");
    for word in ["Step 2", "grow", "Reserved"] {
        assert!(!said.contains(word), "{said}");
    }
}

#[test]
fn the_table_fits_80_columns() {
    let table = table(&adam(), true).to_string();
    assert!(
        table.lines().all(|line| line.chars().count() <= 80),
        "{table}"
    );
}
