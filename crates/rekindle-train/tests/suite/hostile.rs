//! Files of data and records of runs, damaged at random: an answer or an error, and never a panic.

use std::{fs, path::Path};

use proptest::prelude::*;
use rekindle_plan::Request;
use rekindle_train::{
    data::{open, settings::Source},
    record::RunRecord,
    session::{Job, ScheduleRequest, run},
    settings::OptimizerKind,
};
use tempfile::TempDir;

use crate::{
    jobs,
    mutated::{edited, edits},
};

const CASES: u32 = 300;

fn images() -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5];
    bytes.extend(0..60);
    bytes
}

fn records() -> Vec<u8> {
    (0..2u8)
        .flat_map(|label| [vec![label], vec![7; 3072]].concat())
        .collect()
}

fn write(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).expect("written");
}

/// A record as a run writes it.
fn record() -> Vec<u8> {
    let data = jobs::vectors(6, 3, 8);
    let model = rekindle_train::model::spec::ModelSpec {
        input: rekindle_train::model::spec::SampleShape::float([6]),
        layers: vec![rekindle_train::model::spec::LayerSpec::Linear { out: 3, bias: true }],
    };
    let sgd = (OptimizerKind::Sgd, 0.0, 0.0);
    let settings = jobs::classifier(2, 4, sgd);
    let schedule = ScheduleRequest::Plan(Request::default());
    let job = Job::new(&model, &*data.train, &settings, schedule);
    let record = run(&job, rekindle_train::device::DeviceId::Cpu, &mut |_| ()).expect("run");
    serde_json::to_vec(&record).expect("JSON")
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

    #[test]
    fn damaged_idx_files_are_read_or_refused(edits in edits(), packed in any::<bool>()) {
        let folder = TempDir::new().expect("a folder");
        // What is unpacked from random bytes is an error of the decoder.
        let end = if packed { ".gz" } else { "" };
        let path = |kind: &str| folder.path().join(format!("train-{kind}-ubyte{end}"));
        let (images, labels) = (images(), vec![0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 2]);
        let damaged = [edited(&images, &edits), edited(&labels, &edits)];
        for (images, labels) in [(&damaged[0], &labels), (&images, &damaged[1])] {
            write(&path("images-idx3"), images);
            write(&path("labels-idx1"), labels);
            let source = Source::Mnist { folder: folder.path().into() };
            if let Ok(split) = open(&source, 0.0, 1) {
                let last = split.train.len() - 1;
                prop_assert_eq!(split.train.batch(&[last]).predictions(), 1);
            }
        }
    }

    #[test]
    fn damaged_cifar_files_are_read_or_refused(edits in edits()) {
        let folder = TempDir::new().expect("a folder");
        for batch in 1..=5 {
            let path = folder.path().join(format!("data_batch_{batch}.bin"));
            write(&path, &edited(&records(), &edits));
        }
        let source = Source::Cifar10 { folder: folder.path().into() };
        if let Ok(split) = open(&source, 0.0, 1) {
            let last = split.train.len() - 1;
            prop_assert_eq!(split.train.batch(&[last]).predictions(), 1);
        }
    }
}

#[test]
fn damaged_records_are_read_or_refused() {
    own_process!();
    let whole = record();
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(CASES)
    };
    proptest!(config, |(edits in edits())| {
        let _ = RunRecord::from_json(&edited(&whole, &edits));
    });
    assert!(RunRecord::from_json(&whole).is_ok());
}
