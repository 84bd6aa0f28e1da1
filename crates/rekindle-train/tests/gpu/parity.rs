//! Segments never change what is computed: loss, gradients, statistics and updated parameters equal those of a
//! hand-written burn loop.

use burn::tensor::{Device, Distribution, Int, Tensor};
use rekindle::{Layer, Sequential, TensorTree};

use crate::{
    compare,
    models::{self, WIDTH},
};

const BATCH: usize = 4;
const DEPTH: usize = 5;
const CHANNELS: usize = 3;
const VOCAB: usize = 11;

#[test]
fn flex_equals_the_plain_run_bit_for_bit() {
    own_process!();
    every_model(&Device::flex().autodiff(), 0.0, Scope::All);
}

/// Sums on a GPU may be taken in another order when other kernels are chosen, so bits may differ there. Relative to
/// the largest value of each tensor, or to 1.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
const GPU_TOLERANCE: f32 = 2e-4;

/// The device, if it answers.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn opened(id: rekindle_train::device::DeviceId) -> Option<Device> {
    use rekindle::Dtype;
    use rekindle_train::device;

    match device::probe(id) {
        Ok(info) => {
            println!("on {} ({})", info.name, info.detail);
            let opened = device::open(id, Dtype::F32);
            Some(opened.expect("a device that answers").device)
        }
        Err(reason) => {
            println!("skipped: {id}: {reason}");
            None
        }
    }
}

#[cfg(feature = "wgpu")]
#[test]
#[ignore = "takes minutes on software Vulkan: `.ci/full` runs it"]
fn wgpu_equals_the_plain_run_within_tolerance() {
    own_process!();
    if let Some(device) = opened(rekindle_train::device::DeviceId::Wgpu(0)) {
        every_model(&device, GPU_TOLERANCE, Scope::Few);
    }
}

#[cfg(feature = "cuda")]
#[test]
fn cuda_equals_the_plain_run_within_tolerance() {
    own_process!();
    if let Some(device) = opened(rekindle_train::device::DeviceId::Cuda(0)) {
        every_model(&device, GPU_TOLERANCE, Scope::Few);
    }
}

/// Which numbers of segments are compared: all, or one where every new sequence of operations compiles new kernels.
#[derive(Clone, Copy, PartialEq)]
enum Scope {
    All,
    #[cfg_attr(not(any(feature = "wgpu", feature = "cuda")), expect(dead_code))]
    Few,
}

fn every_model(device: &Device, tolerance: f32, scope: Scope) {
    device.seed(1);

    let rows = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, device);
    segmented(
        "mlp",
        &models::mlp(DEPTH, device),
        &rows,
        device,
        tolerance,
        scope,
        mean_square,
    );

    segmented(
        "partly frozen",
        &models::partly_frozen(DEPTH, device),
        &rows,
        device,
        tolerance,
        scope,
        mean_square,
    );

    segmented(
        "low-rank adaptation",
        &models::adapted(DEPTH, device),
        &rows,
        device,
        tolerance,
        scope,
        mean_square,
    );

    segmented(
        "tied weights",
        &models::tied(device),
        &rows,
        device,
        tolerance,
        scope,
        mean_square,
    );

    let memory = Tensor::<2>::random([3, WIDTH], Distribution::Default, device);
    let picked = Tensor::from_ints([2, 0, 1, 1], device);
    segmented(
        "carried tuple",
        &models::carried(DEPTH, device),
        &(rows.clone(), memory, picked),
        device,
        tolerance,
        scope,
        |(state, memory, _)| mean_square(state) + memory.mean(),
    );

    let sequences = Tensor::<3>::random([2, 5, WIDTH], Distribution::Default, device);
    segmented(
        "transformer",
        &models::transformer(DEPTH, device),
        &sequences,
        device,
        tolerance,
        scope,
        mean_square,
    );

    let images = Tensor::<4>::random([BATCH, CHANNELS, 6, 6], Distribution::Default, device);
    segmented(
        "conv + batch norm + dropout",
        &models::conv_net(DEPTH, CHANNELS, device),
        &images,
        device,
        tolerance,
        scope,
        mean_square,
    );

    let tokens = Tensor::<1, Int>::arange(0..VOCAB as i64, device)
        .narrow(0, 0, 10)
        .reshape([2, 5]);
    segmented(
        "embedding + residual",
        &models::token_net(DEPTH, VOCAB, device),
        &(Some(tokens), None),
        device,
        tolerance,
        scope,
        |(_, vectors)| match vectors {
            Some(vectors) => mean_square(vectors),
            None => unreachable!("the last layer gives vectors"),
        },
    );
}

fn mean_square<const D: usize>(output: Tensor<D>) -> Tensor<1> {
    output.powf_scalar(2.0).mean()
}

fn segmented<L, A>(
    name: &str,
    model: &Sequential<L>,
    input: &A,
    device: &Device,
    tolerance: f32,
    scope: Scope,
    loss: impl Fn(A) -> Tensor<1>,
) where
    A: TensorTree,
    L: Layer<Input = A, Output = A>,
{
    let wanted = |count: &usize| scope == Scope::All || *count == 2;
    let mut largest = 0.0_f32;
    for segments in (1..=model.len()).filter(wanted) {
        let what = format!("{name}, {segments} segments");
        let plain = compare::plain(model, input, device, segments, &loss);
        let trace = compare::checkpointed(model, input, device, segments, &loss);
        largest = largest.max(compare::assert_same(&what, &plain, &trace, tolerance));
    }
    println!("{name}: largest difference {largest:e}");
}
