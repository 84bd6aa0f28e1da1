//! Recorded steps on wgpu, fusion on: the plain loop's numbers within rounding, inside a budget on reserved bytes. Says
//! so and does nothing where no adapter answers.
#![cfg(feature = "wgpu")]

use burn::{
    module::{Module, ModuleVisitor, Param},
    nn::{
        BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        loss::CrossEntropyLossConfig,
    },
    optim::GradientsParams,
    tensor::{Distribution, Int, Tensor, activation},
};
use rekindle::{
    Dtype,
    device::{DeviceId, open, probe},
};
use rekindle_plan::{Bytes, graph::GraphPlanner};

/// Kernels are fused, and tuned, in other ways from run to run.
const TOLERANCE: f32 = 1e-5;

#[derive(Module, Debug)]
struct Model {
    convs: Vec<Conv2d>,
    norms: Vec<BatchNorm>,
    head: Linear,
}

impl Model {
    fn forward(&self, mut x: Tensor<4>) -> Tensor<2> {
        for (conv, norm) in self.convs.iter().zip(&self.norms) {
            x = activation::relu(norm.forward(conv.forward(x)));
        }
        self.head.forward(x.mean_dim(3).mean_dim(2).flatten(1, 3))
    }
}

/// Largest difference of any gradient, and how many there are.
fn difference(model: &Model, one: &GradientsParams, other: &GradientsParams) -> (f32, usize) {
    struct Compare<'a>(&'a GradientsParams, &'a GradientsParams, f32, usize);
    impl ModuleVisitor for Compare<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let both = (self.0.get::<D>(param.id), self.1.get::<D>(param.id));
            if let (Some(one), Some(other)) = both {
                let most = (one - other).abs().max().into_data().iter::<f32>().next();
                let most = most
                    .filter(|most| most.is_finite())
                    .unwrap_or(f32::INFINITY);
                (self.2, self.3) = (self.2.max(most), self.3 + 1);
            }
        }
    }
    let mut compare = Compare(one, other, 0.0, 0);
    model.visit(&mut compare);
    (compare.2, compare.3)
}

#[test]
fn recorded_steps_agree_with_the_plain_loop_and_keep_a_budget() {
    let id = DeviceId::Wgpu(0);
    if let Err(reason) = probe(id) {
        eprintln!("skipped: {reason}");
        return;
    }
    let opened = open(id, Dtype::F32).expect("a device that answers");
    let device = opened.device;
    device.seed(3);
    let conv = |from: usize| {
        let config = Conv2dConfig::new([from, 8], [3, 3]).with_padding(PaddingConfig2d::Same);
        config.init(&device)
    };
    let model = Model {
        convs: vec![conv(3), conv(8), conv(8)],
        norms: (0..3)
            .map(|_| BatchNormConfig::new(8).init(&device))
            .collect(),
        head: LinearConfig::new(8, 10).init(&device),
    };
    let images = Tensor::<4>::random([16, 3, 32, 32], Distribution::Normal(0.0, 1.0), &device);
    let batch = (images, Tensor::<1, Int>::zeros([16], &device));
    let step = |model: &Model, (images, targets): (Tensor<4>, Tensor<1, Int>)| {
        let loss = CrossEntropyLossConfig::new().init(&images.device());
        loss.forward(model.forward(images), targets)
    };
    let own = model.valid().train();
    let plain = GradientsParams::from_grads(step(&own, batch.clone()).backward(), &own);

    let recorded = || {
        let recorded = rekindle::record(&model, &batch, step).expect("recorded");
        recorded.with_meter(opened.meter.clone())
    };
    let whole = recorded().plain().expect("planned");
    let budget = Bytes(whole.plan().predicted_peak.0 * 8 / 10);
    let tight = recorded()
        .within_by(budget, GraphPlanner::Auto)
        .expect("planned");
    assert!(tight.plan().repeated > 0, "{:?}", tight.plan());
    opened.meter.trim();
    for (what, step) in [("plain", &whole), ("budget", &tight)] {
        let before = own.norms[0].running_mean.value_sync().into_data();
        let output = step
            .run(&model.valid().train(), batch.clone())
            .expect("run");
        let (most, count) = difference(&model, &output.gradients, &plain);
        eprintln!(
            "{what}: {count} gradients, largest difference {most:.1e}; {:?}, predicted {}, budget {budget}",
            output.memory, output.predicted_peak
        );
        assert_eq!(count, 14);
        assert!(most <= TOLERANCE, "{what}: {most}");
        assert_eq!(before.num_elements(), 8);
    }
    opened.meter.trim();
    opened.meter.start_interval();
    let output = tight.run(&model, batch).expect("run");
    let reserved = output.memory.peak_reserved_bytes.expect("pools");
    assert!(reserved <= budget, "{reserved} in {budget}");
}
