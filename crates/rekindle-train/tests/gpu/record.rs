//! Recorded steps on a GPU, fusion on: the plain loop's numbers within rounding, inside a budget on reserved bytes. Says
//! so and does nothing where no GPU answers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use burn::{
    module::{Module, ModuleVisitor, Param},
    nn::loss::CrossEntropyLossConfig,
    optim::GradientsParams,
    tensor::{Device, Distribution, Int, Tensor},
};
use rekindle::{
    Dtype, Layer, Sequential, TensorTree,
    checkpoint::CheckpointError,
    meter::{Count, Meter, PoolMeter},
    record::{
        RecordError,
        driver::{Driver, ProgramOptions},
    },
};
use rekindle_plan::{Bytes, Planner};
use rekindle_train::device::{OpenDevice, open};

use crate::recorded_models::{Gpt, Vgg, cross_entropy};

/// Kernels are fused, and tuned, in other ways from run to run. Relative to the largest value of each gradient, or to 1.
const TOLERANCE: f32 = 1e-5;

/// Largest difference of any gradient, and how many there are.
fn difference<M: Module>(
    model: &M,
    one: &GradientsParams,
    other: &GradientsParams,
) -> (f32, usize) {
    struct Compare<'a>(&'a GradientsParams, &'a GradientsParams, f32, usize);
    impl ModuleVisitor for Compare<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let both = (self.0.get::<D>(param.id), self.1.get::<D>(param.id));
            let (one, other) = match both {
                (Some(one), Some(other)) => (one, other),
                (None, None) => return,
                _ => panic!("{:?} has one gradient", param.id),
            };
            let largest = one.clone().abs().max().into_scalar::<f32>().max(1.0);
            let most = (one - other).abs().max().into_scalar::<f32>() / largest;
            assert!(most.is_finite());
            self.2 = self.2.max(most);
            self.3 += 1;
        }
    }
    let mut compare = Compare(one, other, 0.0, 0);
    model.visit(&mut compare);
    (compare.2, compare.3)
}

fn check<M, I, F>(
    name: &str,
    opened: &OpenDevice,
    make: impl Fn(&Device) -> M,
    batch: impl Fn(&Device) -> I,
    step: F,
) where
    M: Module,
    I: TensorTree,
    F: Fn(&M, I) -> Tensor<1> + Clone,
{
    let OpenDevice { device, meter } = opened;
    device.seed(3);
    let model = make(device);
    let batch = batch(device);
    let own = model.valid().train();
    device.seed(5);
    let plain = GradientsParams::from_grads(step(&own, batch.clone()).backward(), &own);

    let recorded = || {
        let recorded = rekindle::record(&model, &batch, step.clone()).expect(name);
        // Only this thread uses the device.
        recorded
            .with_meter(meter.clone())
            .with_program_options(ProgramOptions {
                dry_runs: true,
                ..ProgramOptions::default()
            })
    };
    let mut planned = recorded().plain().expect(name);
    let plain_peak = planned.plan().predicted_peak;
    let smallest = match planned.set_budget(Bytes(1), Planner::Auto) {
        Err(RecordError::Infeasible { smallest, .. }) => smallest,
        other => panic!("{name}: {other:?}"),
    };
    let budget = smallest + Bytes((plain_peak - smallest).0 / 2);
    for within in [None, Some(budget)] {
        let planner = within.map_or(Planner::None, |_| Planner::Auto);
        planned.plan_again(within, planner).expect(name);
        assert_eq!(planned.plan().repeated > 0, within.is_some(), "{name}");
        meter.trim();
        meter.start_interval();
        device.seed(5);
        let output = planned
            .run(&model.valid().train(), batch.clone())
            .expect(name);
        let (most, count) = difference(&model, &plain, &output.gradients);
        let reserved = output.memory.peak_reserved_bytes.expect("pools");
        println!(
            "{name}: {count} gradients, largest difference {most:.1e}; {} of {} operations again, {reserved} reserved, \
             predicted {}, budget {within:?}",
            planned.plan().repeated,
            planned.plan().operations,
            output.predicted_peak,
        );
        assert!(count > 0 && most <= TOLERANCE, "{name}: {most}");
        assert!(within.is_none_or(|budget| reserved <= budget), "{name}");
    }
}

const NORMAL: Distribution = Distribution::Normal(0.0, 1.0);

fn classes(count: usize, device: &Device) -> Tensor<1, Int> {
    Tensor::random([count], Distribution::Uniform(0.0, 8.0), device)
}

/// Runs on the GPU that answers.
fn on_the_gpu(checks: impl FnOnce(&OpenDevice)) {
    if let Some(gpu) = crate::gpu() {
        checks(&open(gpu.device, Dtype::F32).expect("a device that answers"));
    }
}

#[test]
#[ignore = "takes minutes on software Vulkan: `.ci/full` runs it"]
fn images_are_trained_as_by_the_plain_loop_within_a_budget() {
    own_process!();
    on_the_gpu(|opened| {
        check(
            "vgg",
            opened,
            Vgg::new,
            |device| {
                let images = Tensor::<4>::random([8, 3, 32, 32], NORMAL, device);
                (images, classes(8, device))
            },
            |model, (images, targets)| cross_entropy(model.forward(images), targets),
        );
    });
}

/// A driver holds more than pools ask for: loaded kernels, and what it rounds buffers up by.
#[test]
fn what_the_driver_holds_is_counted_from_the_next_clean_up_on_and_never_below_its_context() {
    own_process!();
    on_the_gpu(|OpenDevice { device, .. }| {
        const MIB: u64 = 1 << 20;
        // What it says of the whole process; zero if it says nothing.
        let says = Arc::new(AtomicU64::new(0));
        let held = says.clone();
        let meter = PoolMeter::new(device.clone()).with_driver(Driver {
            context: Bytes(10 * MIB),
            unit: Bytes(2 * MIB),
            held: Box::new(move || Some(Bytes(held.load(Relaxed))).filter(|held| held.0 > 0)),
        });
        let kept = Tensor::<2>::ones([1024, 1024], device);
        let reserved = || meter.read().reserved_bytes.expect("pools");
        let at_first = reserved();
        assert!(at_first >= Bytes(4 * MIB), "{at_first}");
        assert_eq!(meter.held(), at_first + Bytes(10 * MIB));

        says.store(1024 * MIB, Relaxed);
        assert_eq!(meter.held(), Bytes(1024 * MIB));
        assert_eq!(meter.context_bytes(), Bytes(10 * MIB));
        assert_eq!(meter.trim(), Bytes(1024 * MIB));
        assert_eq!(meter.context_bytes(), Bytes(1024 * MIB) - reserved());

        // Less than the pools reserve: a container may list a part.
        says.store(1, Relaxed);
        assert_eq!(meter.trim(), reserved() + Bytes(10 * MIB));
        assert_eq!(meter.context_bytes(), Bytes(10 * MIB));
        assert_eq!(
            meter.lifetime_peak().counted(Count::Reserved),
            Bytes(1024 * MIB)
        );
        drop(kept);
    });
}

/// A weight that is added to a batch of its shape.
#[derive(Module, Debug)]
struct Shift {
    weight: Param<Tensor<1>>,
}

impl Layer for Shift {
    type Input = Tensor<1>;
    type Output = Tensor<1>;

    fn forward(&self, input: Tensor<1>) -> Tensor<1> {
        (input + self.weight.val()).tanh()
    }
}

/// wgpu binds no more of a buffer than its limit. A kernel that needs more is left out, and no call of burn's says so: its
/// numbers must not be handed out.
#[test]
fn what_the_device_refuses_fails_the_step() {
    own_process!();
    on_the_gpu(|OpenDevice { device, meter }| {
        let Some(limit) = meter.largest_buffer() else {
            println!("this device bounds no buffer");
            return;
        };
        let elements = (limit.0 / 4) as usize + 1024;
        let make = |elements: usize| {
            let weight = Param::from_tensor(Tensor::zeros([elements], device));
            let input = Tensor::<1>::ones([elements], &device.clone().without_autodiff());
            (Shift { weight }, input)
        };
        let (model, input) = make(elements);
        let recorded = rekindle::record(&model, &input, |model: &Shift, input| {
            model.forward(input).sum()
        });
        let refused = recorded
            .expect("a step")
            .with_meter(meter.clone())
            .plain()
            .err();
        let Some(RecordError::TensorTooLarge {
            bytes, limit: told, ..
        }) = &refused
        else {
            panic!("{refused:?}");
        };
        assert_eq!((bytes.0, *told), (elements as u64 * 4, limit));
        println!("{refused:?}");

        let chain = |model| Sequential::new(vec![model]);
        let step = |(model, input)| {
            rekindle::checkpoint_sequential(&chain(model), 1, input, |output: Tensor<1>| {
                output.sum()
            })
        };
        let refused = step((model, input)).err();
        assert!(
            matches!(refused, Some(CheckpointError::Refused { .. })),
            "{refused:?}"
        );

        // The device goes on.
        let output = step(make(1024)).expect("a step");
        let loss = output.loss.into_scalar::<f32>();
        let expected = 1024.0 * 1f32.tanh();
        assert!((loss - expected).abs() < 1e-2, "{loss}, {expected}");
    });
}

#[test]
#[ignore = "takes minutes on software Vulkan: `.ci/full` runs it"]
fn a_transformer_is_trained_as_by_the_plain_loop_within_a_budget() {
    own_process!();
    on_the_gpu(|opened| {
        check(
            "gpt",
            opened,
            Gpt::new,
            |device| {
                let range = Distribution::Uniform(0.0, 40.0);
                let tokens = Tensor::<2, Int>::random([32, 12], range, device);
                (tokens, Tensor::<2, Int>::random([32, 12], range, device))
            },
            |model, (tokens, targets)| {
                let output = model.forward(tokens);
                let [batch, length, words] = output.dims();
                let loss = CrossEntropyLossConfig::new().init(&output.device());
                loss.forward(
                    output.reshape([batch * length, words]),
                    targets.reshape([batch * length]),
                )
            },
        );
    });
}
