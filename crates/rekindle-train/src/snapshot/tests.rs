//! Snapshots that are damaged, or of any content.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::collections::HashSet;

use burn::{
    nn::{Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Distribution, Tensor},
};
use proptest::prelude::*;
use rekindle::record::Optimizer as _;

use super::*;
use crate::settings::OptimizerKind;
use mutated::{edited, edits};

#[path = "../../../rekindle-plan/tests/support/mutated.rs"]
mod mutated;

/// How the header starts: `format` is the first of the metadata's keys.
const START: &str = r#"{"__metadata__":{"format":"rekindle-snapshot/5","#;

/// Writes a snapshot with the right start and checksum: the rest of the header up to a line's end, then all values.
fn crafted(path: &Path, body: &[u8]) -> io::Result<()> {
    let mut parts = body.splitn(2, |byte| *byte == b'\n');
    let header = [START.as_bytes(), parts.next().unwrap_or_default()].concat();
    let length = (header.len() as u64).to_le_bytes();
    let mut bytes = [&length[..], &header, parts.next().unwrap_or_default()].concat();
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    std::fs::write(path, bytes)
}

#[test]
fn lengths_far_beyond_the_file_are_refused_before_memory_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot");
    for length in [1 << 30, 1 << 40, 1 << 62, u64::MAX] {
        for (shape, from, to) in [(length / 4, 0, length), (length, 0, 0), (0, length, 0)] {
            let place =
                format!(r#""x":{{"dtype":"F32","shape":[{shape}],"data_offsets":[{from},{to}]}}"#);
            crafted(&path, format!(r#""run":""}},{place}}}"#).as_bytes()).unwrap();
            let error = Snapshot::open(&path).err().unwrap();
            let words = "cannot be read as safetensors";
            assert!(error.reason().starts_with(words), "{error}");
        }
        let bytes = [&length.to_le_bytes()[..], START.as_bytes(), &[0; 64]].concat();
        std::fs::write(&path, bytes).unwrap();
        let error = Snapshot::open(&path).err().unwrap();
        assert!(error.reason().contains("cut short"), "{error}");
    }
}

/// In pieces of 1,048 rows, and the rest.
#[test]
fn the_values_of_a_large_tensor_are_written_in_order() {
    let config = LinearConfig::new(2200, 1000).with_bias(false);
    let model: Linear = config.init(&Device::flex());
    let mut written = Vec::new();
    tensors::write_values(&model, &mut written).unwrap();
    assert!(written == model.weight.val().into_data().as_bytes());
}

/// Adam, with all else that a snapshot may hold.
fn adam() -> AnyOptimizer {
    AnyOptimizer::new(&TrainSettings {
        dtype: Dtype::F16,
        ..TrainSettings::default()
    })
}

/// Opens a snapshot and restores all that is in it.
fn restored(path: &Path, model: &Linear) -> Result<(), FileError> {
    let mut snapshot = Snapshot::open(path)?;
    let model = snapshot.restore(model.clone())?;
    let device = Device::flex().autodiff();
    let mut snapshot = snapshot.close()()?;
    adam().restored(&mut snapshot, &model, &device).map(drop)
}

#[test]
fn snapshots_with_any_content_and_a_right_checksum_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot");
    let device = Device::flex().autodiff();
    let model: Linear = Dtype::F16.cast(LinearConfig::new(3, 2).init(&device));
    let input = Tensor::<2>::ones([1, 3], (&device, DType::F16));
    let loss = model.forward(input).sum();
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let mut optimizer = adam();
    let model = optimizer.step(0.1, model, gradients);
    let mut written = Vec::new();
    put(&mut written, "{}", &Progress::default(), &model, &optimizer).unwrap();
    std::fs::write(&path, written).unwrap();
    restored(&path, &model).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let (length, rest) = whole.split_first_chunk().unwrap();
    let (header, values) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let (header, values) = (&header[START.len()..], &values[..values.len() - 4]);
    crafted(&path, &[header, b"\n", values].concat()).unwrap();
    assert!(std::fs::read(&path).unwrap() == whole);
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(400)
    };
    proptest!(config, |(header_edits in edits(), value_edits in edits())| {
        let [header, values] = [(header, header_edits), (values, value_edits)]
            .map(|(bytes, edits)| edited(bytes, &edits));
        crafted(&path, &[&header[..], b"\n", &values].concat()).unwrap();
        let _ = restored(&path, &model);
    });
}

/// Trained without a break, with the state on the device, and with a snapshot halfway, from which the run goes on.
#[test]
fn a_state_that_waits_on_the_host_changes_no_bit_of_weights_and_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("snapshot");
    let device = Device::flex().autodiff();
    for (kind, dtype) in [
        (OptimizerKind::Sgd, Dtype::F32),
        (OptimizerKind::Adam, Dtype::F32),
        (OptimizerKind::AdamW, Dtype::Bf16),
    ] {
        let settings = TrainSettings {
            optimizer: kind,
            momentum: 0.9,
            dtype,
            ..TrainSettings::default()
        };
        let first: Linear = dtype.cast(LinearConfig::new(7, 5).init(&device));
        let float = DType::from(dtype.float());
        let input = Tensor::<2>::random([3, 7], Distribution::Default, (&device, float));
        let steps = |model: Linear, optimizer: &mut AnyOptimizer, on_host: [&HashSet<_>; 2]| {
            on_host.into_iter().fold(model, |model, on_host| {
                optimizer.keep_on_host(on_host.clone());
                let loss = model.forward(input.clone()).square().mean();
                let gradients = GradientsParams::from_grads(loss.backward(), &model);
                optimizer.step(0.1, model, gradients)
            })
        };
        let written = |model: &Linear, optimizer: &AnyOptimizer| {
            let mut written = Vec::new();
            put(&mut written, "{}", &Progress::default(), model, optimizer).unwrap();
            written
        };
        let none = HashSet::new();
        let mut optimizer = AnyOptimizer::new(&settings);
        let halfway = steps(first.clone(), &mut optimizer, [&none; 2]);
        let plain_halfway = written(&halfway, &optimizer);
        let end = steps(halfway, &mut optimizer, [&none; 2]);
        let plain = written(&end, &optimizer);

        let weight = HashSet::from([first.weight.id]);
        let both = HashSet::from([first.weight.id, first.bias.as_ref().unwrap().id]);
        for on_host in [[&weight; 2], [&both; 2], [&none, &both], [&both, &weight]] {
            let mut optimizer = AnyOptimizer::new(&settings);
            let halfway = steps(first.clone(), &mut optimizer, on_host);
            let snapshot = written(&halfway, &optimizer);
            assert!(snapshot == plain_halfway, "{kind:?}, {on_host:?}");
            assert_eq!(optimizer.not_finite(), None);

            std::fs::write(&path, snapshot).unwrap();
            let mut optimizer = AnyOptimizer::new(&settings);
            optimizer.keep_on_host(on_host[1].clone());
            let mut snapshot = Snapshot::open(&path).unwrap();
            let model = snapshot.restore(first.clone()).unwrap();
            let optimizer = optimizer.restored(&mut snapshot, &model, &device);
            let mut optimizer = optimizer.unwrap();
            let end = steps(model, &mut optimizer, on_host);
            assert!(written(&end, &optimizer) == plain, "{kind:?}, {on_host:?}");
        }
    }
}
