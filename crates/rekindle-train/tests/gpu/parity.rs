//! Segments never change what is computed: loss, gradients, statistics and updated parameters equal those of a
//! hand-written burn loop.

use burn::tensor::{Device, Distribution, Tensor};
use rekindle::{Layer, Sequential, TensorTree};

use crate::{
    compare,
    models::{self, WIDTH},
};

const BATCH: usize = 4;
const DEPTH: usize = 5;
const CHANNELS: usize = 3;

#[test]
fn flex_equals_the_plain_run_bit_for_bit() {
    own_process!();
    let device = Device::flex().autodiff();
    let parity = Parity {
        device: &device,
        tolerance: 0.0,
        few: false,
    };
    parity.every_model();
}

/// Sums on a GPU may be taken in another order when other kernels are chosen, so bits may differ there. Relative to
/// the largest value of each tensor, or to 1.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
const GPU_TOLERANCE: f32 = 2e-4;

#[cfg(any(feature = "wgpu", feature = "cuda"))]
#[test]
#[ignore = "takes minutes on software Vulkan: `.ci/full` runs it"]
fn a_gpu_equals_the_plain_run_within_tolerance() {
    use rekindle::Dtype;
    use rekindle_train::device::open;

    own_process!();
    if let Some(gpu) = crate::gpu() {
        let opened = open(gpu.device, Dtype::F32).expect("a device that answers");
        let parity = Parity {
            device: &opened.device,
            tolerance: GPU_TOLERANCE,
            few: true,
        };
        parity.every_model();
    }
}

struct Parity<'a> {
    device: &'a Device,
    tolerance: f32,
    /// Whether two segments are compared alone: every new sequence of operations compiles new kernels.
    few: bool,
}

impl Parity<'_> {
    fn every_model(&self) {
        let device = self.device;
        device.seed(1);

        let rows = Tensor::<2>::random([BATCH, WIDTH], Distribution::Default, device);
        self.check("mlp", &models::mlp(DEPTH, device), &rows, mean_square);
        self.check("tied weights", &models::tied(device), &rows, mean_square);

        let sequences = Tensor::<3>::random([2, 5, WIDTH], Distribution::Default, device);
        let transformer = models::transformer(DEPTH, device);
        self.check("transformer", &transformer, &sequences, mean_square);

        let images = Tensor::<4>::random([BATCH, CHANNELS, 6, 6], Distribution::Default, device);
        let conv_net = models::conv_net(DEPTH, CHANNELS, device);
        self.check(
            "conv + batch norm + dropout",
            &conv_net,
            &images,
            mean_square,
        );
    }

    fn check<L, A>(
        &self,
        name: &str,
        model: &Sequential<L>,
        input: &A,
        loss: impl Fn(A) -> Tensor<1>,
    ) where
        A: TensorTree,
        L: Layer<Input = A, Output = A>,
    {
        let mut largest = 0.0_f32;
        for segments in (1..=model.layers.len()).filter(|count| !self.few || *count == 2) {
            let what = format!("{name}, {segments} segments");
            let plain = compare::plain(model, input, self.device, segments, &loss);
            let trace = compare::checkpointed(model, input, self.device, segments, &loss);
            largest = largest.max(compare::assert_same(&what, &plain, &trace, self.tolerance));
        }
        println!("{name}: largest difference {largest:e}");
    }
}

fn mean_square<const D: usize>(output: Tensor<D>) -> Tensor<1> {
    output.powf_scalar(2.0).mean()
}
