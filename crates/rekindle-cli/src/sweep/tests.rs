//! Views of made-up records.

use rekindle::{
    meter::{Count, MemoryReading, Phase, PhaseReading},
    record::PlanSummary,
};
use rekindle_plan::{Bytes, Seconds};
use rekindle_train::record::{Measured, PhasedStep, RunRecord};

use crate::{plot::frontier, summary::made_up_run};

use super::{
    Point, SweepRecord, SweepRow,
    record::{RowOutcome, SWEEP_FORMAT, front},
};

const MIB: u64 = 1 << 20;

fn phases(held: u64, peak: u64) -> Vec<PhasedStep> {
    let reading = |phase, in_use: u64, peak: u64| PhaseReading {
        phase,
        seconds_s: 0.1,
        memory: MemoryReading {
            in_use_bytes: Bytes(in_use),
            peak_in_use_bytes: Bytes(peak),
            reserved_bytes: None,
            peak_reserved_bytes: None,
        },
    };
    let step = |step, held| PhasedStep {
        step,
        phases: vec![
            reading(Phase::ZeroGrad, held, held + 7 * MIB),
            reading(Phase::Forward, peak, peak - 1),
            reading(Phase::Loss, peak, peak - 1),
            reading(Phase::Backward, held, peak),
            reading(Phase::Optimizer, held, peak + 9 * MIB),
        ],
    };
    // The first step starts with less: the optimizer has no state yet.
    vec![step(1, held / 2), step(2, held)]
}

fn ran(budget: Option<Bytes>, peak: u64, step: f64) -> RunRecord {
    let run = made_up_run();
    RunRecord {
        plan: PlanSummary {
            budget,
            predicted_peak: Bytes(peak - MIB / 2),
            predicted_time: Seconds(step * 2.0),
            plain_peak: Bytes(100 * MIB),
            plain_time: Seconds(0.25),
            ..run.plan
        },
        measured: Measured {
            peak: Bytes(peak),
            step: Seconds(step),
            range: Some([0.75 * step, 1.25 * step].map(Seconds)),
            ..run.measured
        },
        phases: phases(20 * MIB, peak),
        ..run
    }
}

fn empty() -> SweepRecord {
    SweepRecord {
        format: SWEEP_FORMAT.into(),
        config: "configs/a.toml".into(),
        device: "cpu".into(),
        device_name: "a processor".into(),
        count: Count::InUse,
        batch: 64,
        steps: 2,
        limit_bytes: Some(Bytes(64 * MIB)),
        rows_asked: 6,
        interrupted: false,
        rows: Vec::new(),
    }
}

fn made_up() -> SweepRecord {
    let mut record = empty();
    let budget = Bytes(40 * MIB);
    for (point, run) in [
        (Point::Plain, ran(None, 100 * MIB, 0.25)),
        (Point::Segments(4), ran(None, 50 * MIB, 0.3125)),
        (Point::Segments(16), ran(None, 60 * MIB, 0.625)),
        (Point::Optimal(budget), ran(Some(budget), 39 * MIB, 0.5)),
    ] {
        record.add(SweepRow::done(point, run));
    }
    let message = "no plan fits 1.0 MiB; the smallest budget is 30.0 MiB".to_owned();
    let point = Point::Optimal(Bytes(MIB));
    record.add(SweepRow::not_done(point, RowOutcome::NoPlan, message));
    let message = "out of memory: could not allocate 5 bytes".to_owned();
    let point = Point::Segments(2);
    record.add(SweepRow::not_done(point, RowOutcome::OutOfMemory, message));
    record
}

#[test]
fn the_table_shows_every_row_in_80_columns() {
    let text = made_up().text();
    insta::assert_snapshot!(text);
    assert!(text.lines().all(|line| line.chars().count() <= 80));
}

#[test]
fn rows_are_compared_with_the_plain_row_and_with_each_other() {
    let rows = made_up().rows;
    let slowdown = |row: &SweepRow| row.slowdown.map(|slowdown| slowdown.times);
    let slowdowns: Vec<Option<f64>> = rows.iter().map(slowdown).collect();
    let wanted = [Some(1.0), Some(1.25), Some(2.5), Some(2.0), None, None];
    assert_eq!(slowdowns, wanted);
    // 16 segments take more of both than 4.
    let pareto: Vec<bool> = rows.iter().map(|row| row.pareto).collect();
    assert_eq!(pareto, [true, true, false, true, false, false]);
    // Within the sweep's limit of 64 MiB, whatever its own budget.
    let fits: Vec<bool> = rows.iter().map(|row| row.fits).collect();
    assert_eq!(fits, [false, true, true, true, false, false]);
    // Neither the batch's arrival nor the optimizer, and not the first step.
    assert_eq!(rows[1].activation_bytes, Some(Bytes(30 * MIB)));
}

#[test]
fn a_row_is_on_the_front_unless_another_is_as_small_and_as_fast() {
    let costs = [
        Some((100, 1.0)), // the fastest
        Some((50, 1.2)),
        Some((50, 1.3)), // as small as the one before, and slower
        None,            // did not run
        Some((60, 1.2)), // as fast as the second, and larger
        Some((20, 2.0)), // the smallest
        Some((20, 2.0)), // its equal
    ];
    assert_eq!(front(&costs), [true, true, false, false, false, true, true]);
}

#[test]
fn the_picture_marks_every_run() {
    let svg = frontier::picture(&made_up()).expect("rows ran");
    let labels = ["plain", "4 segments", "plan 40.0 MiB", "limit 64.0 MiB"];
    for label in labels.map(|label| format!(">{label}<")) {
        assert!(svg.contains(&label), "{label} in {svg}");
    }
    // Another run beats that of 16 segments.
    assert!(!svg.contains(">16 segments<"), "{svg}");
    let hint = ">plan 40.0 MiB: peak 39.0 MiB, step 500.0 ms (375.0 ms to 625.0 ms)<";
    assert!(svg.contains(hint), "{svg}");
    assert!(frontier::picture(&empty()).is_none());
}
