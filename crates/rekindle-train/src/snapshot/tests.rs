//! Snapshots that are damaged, of earlier versions, or of any content.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use bincode::{config, serde::encode_to_vec};
use burn::{
    nn::{Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use proptest::prelude::*;
use serde::Serialize;

use super::{
    format::TRAILER,
    mutated::{edited, edits},
    *,
};
use crate::{optimizer::AnyOptimizer, settings::TrainSettings};
use rekindle::{dtype::Dtype, record::Optimizer as _};

fn encoded<T: Serialize>(value: T) -> Vec<u8> {
    encode_to_vec(value, config::standard()).unwrap()
}

#[test]
fn lengths_far_beyond_the_file_are_refused_before_memory_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot");
    let refused = |body: &[u8]| {
        crafted(&path, body).unwrap();
        let error = Snapshot::open(&path).err().unwrap();
        assert!(matches!(error, RunDirError::Malformed { .. }), "{error}");
    };
    for length in [1 << 30, 1 << 40, 1 << 62, u64::MAX] {
        refused(&encoded(length));
        refused(&[encoded("{}"), encoded(length)].concat());
    }
}

/// Adam, with all else that a snapshot may hold.
fn adam() -> AnyOptimizer {
    AnyOptimizer::new(&TrainSettings {
        dtype: Dtype::F16,
        ..TrainSettings::default()
    })
}

/// Opens a snapshot and restores all that is in it.
fn restored(path: &Path, model: &Linear) -> Result<(), RunDirError> {
    let mut snapshot = Snapshot::open(path)?;
    snapshot.restore(model.clone())?;
    let device = Device::flex().autodiff();
    adam().restored(&mut snapshot, &device).map(drop)
}

#[test]
fn snapshots_with_any_content_and_a_right_checksum_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot");
    let device = Device::flex().autodiff();
    let model: Linear = Dtype::F16.cast(LinearConfig::new(3, 2).init(&device));
    let input = Tensor::<2>::ones([1, 3], (&device, burn::tensor::DType::F16));
    let loss = model.forward(input).sum();
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let mut optimizer = adam();
    let model = optimizer.step(0.1, model, gradients);
    write(&path, "{}", &Progress::default(), |to| {
        to.model(&model)?;
        optimizer.save(to)
    })
    .unwrap();
    assert!(restored(&path, &model).is_ok());
    let whole = std::fs::read(&path).unwrap();
    let body = &whole[START.len()..whole.len() - TRAILER as usize];
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(400)
    };
    proptest!(config, |(edits in edits())| {
        crafted(&path, &edited(body, &edits)).unwrap();
        let _ = restored(&path, &model);
    });
}

#[test]
fn snapshots_of_earlier_versions_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot");
    for version in [1, 2] {
        std::fs::write(
            &path,
            format!("rekindle-snapshot/{version}\nwhatever follows"),
        )
        .unwrap();
        let error = Snapshot::open(&path).err().unwrap();
        assert_eq!(
            error.to_string(),
            format!(
                "{}: is a `rekindle-snapshot/{version}` of an earlier version and cannot be read: continue the run \
                 with that version, or start a new run",
                path.display()
            )
        );
    }
}
