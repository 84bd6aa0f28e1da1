//! What an estimate says, on kernels that do not depend on the machine.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::path::{Path, PathBuf};

use rekindle::record::Kernels;
use rekindle_plan::{Bytes, Planner, Request};
use rekindle_train::session::ScheduleRequest;

use super::{Estimate, Limit};
use crate::{
    args::TrainArgs,
    config::{self, Config},
};

/// Two threads, each with a slab of a mebibyte, on a processor with AVX-512.
const KERNELS: Kernels = Kernels::Host {
    threads: 2,
    slab_bytes: 1 << 20,
    panel: 64,
};

/// The repository's configs.
const CONFIGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs");

fn load(config: PathBuf) -> Config {
    let config = Some(config);
    let typed = TrainArgs {
        config,
        ..TrainArgs::default()
    };
    config::load(&typed).unwrap()
}

fn estimate(config: &str, wanted: Option<&ScheduleRequest>, limit: Bytes) -> Estimate {
    let config = load(Path::new(CONFIGS).join(config));
    let limit = Limit {
        of: "budget".into(),
        bytes: limit,
    };
    let step = config.estimated(&config.training, KERNELS);
    let (estimate, _) = Estimate::new(&config, step, wanted, Some(limit)).unwrap();
    estimate
}

fn in_segments(segments: usize) -> ScheduleRequest {
    ScheduleRequest::Plan(Request::of(Planner::Segments(Some(segments)), None))
}

/// 24 -> 48, five times 48 -> 48, layer norm, 48 -> 8, under Adam, 32 samples of 24 numbers and 8 targets.
#[test]
fn a_breakdown_adds_up_by_hand() {
    let estimate = estimate("parity/mlp.toml", None, Bytes(1 << 30));
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
    let predicted = estimate.plain.plan.predicted_peak;
    assert_eq!(parts.into_iter().sum::<Bytes>(), predicted);
}

#[test]
fn a_model_that_fits_only_in_segments() {
    let text = estimate("deep-linear.toml", Some(&in_segments(4)), Bytes(40 << 20)).text();
    assert_fits_80_columns(&text);
    insta::assert_snapshot!(text);
}

#[test]
fn a_model_that_fits_nowhere() {
    let text = estimate("deep-linear.toml", None, Bytes(21 << 20)).text();
    assert_fits_80_columns(&text);
    insta::assert_snapshot!(text);
}

/// Each config of the repository is read and its step recorded. Shapes count parameters by rule, the recorded step by
/// visiting the built modules.
#[test]
fn numbers_of_parameters_are_those_of_the_built_model() {
    let mut seen = 0;
    for folder in [
        Path::new(CONFIGS).to_owned(),
        Path::new(CONFIGS).join("parity"),
    ] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|kind| kind != "toml") {
                continue;
            }
            let config = load(path.clone());
            let step = config.estimated(&config.training, KERNELS);
            let step = step.estimate().unwrap();
            assert_eq!(config.shape.param_count(), step.trainable, "{path:?}");
            seen += 1;
        }
    }
    assert!(seen >= 14, "{seen} configs");
}

fn assert_fits_80_columns(text: &str) {
    for line in text.lines() {
        assert!(line.trim_end().chars().count() <= 80, "{line}");
    }
}
