//! What an estimate says, on kernels that do not depend on the machine.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::Path;

use rekindle::record::Kernels;
use rekindle_plan::{Bytes, Planner, Request};

use rekindle_train::fit::Limit;

use super::{Estimate, Wanted, layers};
use crate::{
    args::ReplaceArgs,
    config::{self, Overrides},
};

/// Two threads, each with a slab of a mebibyte.
const KERNELS: Kernels = Kernels::Host {
    threads: 2,
    slab_bytes: 1 << 20,
};

fn estimate(config: &str, wanted: &Wanted, limit: Bytes) -> Estimate {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join("configs")
        .join(config);
    let config = config::load(&path, &Overrides::default()).unwrap();
    let limit = Limit {
        of: Limit::BUDGET.into(),
        bytes: limit,
    };
    let (estimate, _) = Estimate::new(&config, KERNELS, wanted, Some(limit)).unwrap();
    estimate
}

fn in_segments(segments: usize) -> Wanted {
    Wanted::Plan(Request {
        planner: Planner::Segments(Some(segments)),
        ..Request::default()
    })
}

/// 24 -> 48, five times 48 -> 48, layer norm, 48 -> 8, under Adam, 32 samples of 24 numbers and 8 targets.
#[test]
fn a_breakdown_adds_up_by_hand() {
    let estimate = estimate("parity/mlp.toml", &Wanted::Plain, Bytes(1 << 30));
    let params = (24 * 48 + 48) + 5 * (48 * 48 + 48) + 2 * 48 + (48 * 8 + 8);
    let peak = &estimate.plain.peak;
    assert_eq!(peak.parameters_bytes, Bytes(4 * params));
    assert_eq!(peak.optimizer_bytes, Bytes(2 * 4 * params));
    assert_eq!(peak.data_bytes, Bytes(4 * 32 * (24 + 8)));
    let parts = [
        peak.parameters_bytes,
        peak.gradients_bytes,
        peak.optimizer_bytes,
        peak.activations_bytes,
        peak.temporaries_bytes,
        peak.data_bytes,
        peak.other_bytes,
    ];
    assert_eq!(parts.into_iter().sum::<Bytes>(), peak.total_bytes);
}

#[test]
fn memory_grows_with_the_batch_and_parameters_do_not() {
    let at = |batch| {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("configs/parity/conv.toml");
        let replace = ReplaceArgs {
            batch: Some(batch),
            ..ReplaceArgs::default()
        };
        let config = config::load(&path, &Overrides::from(&replace)).unwrap();
        Estimate::new(&config, KERNELS, &Wanted::Plain, None)
            .unwrap()
            .0
    };
    let (once, twice) = (at(8), at(16));
    assert_eq!(once.param_bytes, twice.param_bytes);
    assert_eq!(
        once.plain.peak.optimizer_bytes,
        twice.plain.peak.optimizer_bytes
    );
    assert_eq!(
        2 * once.plain.peak.data_bytes.0,
        twice.plain.peak.data_bytes.0
    );
    assert_eq!(2 * once.multiply_adds, twice.multiply_adds);
    assert!(once.plain.peak.activations_bytes < twice.plain.peak.activations_bytes);
}

#[test]
fn a_model_that_fits_only_in_segments() {
    let text =
        estimate("deep-linear.toml", &in_segments(4), Bytes(40 << 20)).text(usize::MAX, false);
    assert_fits_80_columns(&text);
    insta::assert_snapshot!(text);
}

#[test]
fn a_model_that_fits_nowhere_but_at_a_smaller_batch() {
    let text =
        estimate("deep-linear.toml", &Wanted::Plain, Bytes(21 << 20)).text(usize::MAX, false);
    assert_fits_80_columns(&text);
    insta::assert_snapshot!(text);
}

/// Rows of the first level have the totals of their groups.
#[test]
fn shares_of_a_model_of_convolutions_add_up() {
    let estimate = estimate("conv-pyramid.toml", &Wanted::Plain, Bytes(1 << 30));
    let whole = estimate.text(usize::MAX, false);
    assert_fits_80_columns(&whole);
    insta::assert_snapshot!(whole);

    let text = estimate.text(1, false);
    let table = text.split("\n\n").next().unwrap();
    assert!(!table.contains("\n  "), "a deeper level: {table}");
    let shares = table
        .split_whitespace()
        .filter_map(|cell| cell.strip_suffix('%'));
    let shares: Vec<f64> = shares.map(|share| share.parse().unwrap()).collect();
    let (total, rows) = shares.split_last().unwrap();
    assert_eq!(*total, 100.0);
    // Each is rounded to a tenth.
    let off = rows.iter().sum::<f64>() - total;
    assert!(off.abs() <= 0.05 * rows.len() as f64, "{table}");
}

/// Each config of the repository is read and its step recorded. Layers count their numbers by rule, the recorded step by
/// visiting the built modules.
#[test]
fn numbers_of_layers_are_those_of_the_built_model() {
    let configs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs"));
    let mut seen = 0;
    for folder in [configs.to_owned(), configs.join("parity")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|kind| kind != "toml") {
                continue;
            }
            let config = config::load(&path, &Overrides::default()).unwrap();
            let step = config.estimated(&config.training, KERNELS);
            let step = step.estimate().unwrap();
            let layers = layers::layers(&config).into_iter();
            let counted = layers.fold((0, 0), |(trained, frozen), layer| {
                (trained + layer.param_count, frozen + layer.frozen_count)
            });
            assert_eq!(counted, (step.trainable, step.frozen), "{path:?}");
            seen += 1;
        }
    }
    assert!(seen >= 14, "{seen} configs");
}

#[test]
fn colours_are_only_there_on_request() {
    let estimate = estimate("parity/mlp.toml", &Wanted::Plain, Bytes(1 << 30));
    assert!(!estimate.text(usize::MAX, false).contains('\x1b'));
    assert!(estimate.text(usize::MAX, true).contains("\x1b["));
}

fn assert_fits_80_columns(text: &str) {
    for line in text.lines() {
        assert!(line.trim_end().chars().count() <= 80, "{line}");
    }
}
