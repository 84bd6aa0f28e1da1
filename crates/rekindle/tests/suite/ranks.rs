//! Ranks that share a step, against one device with the whole batch.

mod collectives;
mod failures;
mod network;
mod training;

use std::{ops::Range, thread};

use burn::{
    module::Module,
    nn::{
        BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        loss::CrossEntropyLossConfig,
    },
    tensor::{Device, Distribution, Int, Tensor},
};
use rekindle::{
    Sequential, TensorTree,
    meter::{FailedAllocation, MemoryReading, Meter, PeakMemory},
    reduce::{Reducer, in_process},
    synchronised_batch_norm,
};

use crate::{
    models::{Dense, WIDTH, mlp},
    record_parity::models::Gpt,
};

/// Something to train.
trait Task: Sync {
    type Model: Module + Sync;
    type Batch: TensorTree + Sync;

    fn model(device: &Device) -> Self::Model;
    fn batch(samples: usize, device: &Device) -> Self::Batch;
    /// Some samples of a batch.
    fn part(batch: &Self::Batch, samples: Range<usize>) -> Self::Batch;
    /// The mean over samples.
    fn loss(model: &Self::Model, batch: Self::Batch) -> Tensor<1>;
    /// The same on one device, where ranks do it by other means.
    fn loss_alone(model: &Self::Model, batch: Self::Batch) -> Tensor<1> {
        Self::loss(model, batch)
    }
}

struct Mlp;

impl Task for Mlp {
    type Model = Sequential<Dense>;
    type Batch = (Tensor<2>, Tensor<2>);

    fn model(device: &Device) -> Self::Model {
        mlp(5, device)
    }

    fn batch(samples: usize, device: &Device) -> Self::Batch {
        let random = || Tensor::random([samples, WIDTH], Distribution::Default, device);
        (random(), random())
    }

    fn part((inputs, targets): &Self::Batch, samples: Range<usize>) -> Self::Batch {
        (
            inputs.clone().slice([samples.clone()]),
            targets.clone().slice([samples]),
        )
    }

    fn loss(model: &Self::Model, (inputs, targets): Self::Batch) -> Tensor<1> {
        (model.forward(inputs) - targets).square().mean()
    }
}

struct Transformer;

impl Task for Transformer {
    type Model = Gpt;
    type Batch = (Tensor<2, Int>, Tensor<2, Int>);

    fn model(device: &Device) -> Gpt {
        Gpt::with_dropout(0.0, device)
    }

    fn batch(samples: usize, device: &Device) -> Self::Batch {
        let words = Distribution::Uniform(0.0, 40.0);
        let random = || Tensor::random([samples, 12], words, device);
        (random(), random())
    }

    fn part((tokens, targets): &Self::Batch, samples: Range<usize>) -> Self::Batch {
        (
            tokens.clone().slice([samples.clone()]),
            targets.clone().slice([samples]),
        )
    }

    fn loss(model: &Gpt, (tokens, targets): Self::Batch) -> Tensor<1> {
        let output = model.forward(tokens).flatten(0, 1);
        let loss = CrossEntropyLossConfig::new().init(&output.device());
        loss.forward(output, targets.flatten(0, 1))
    }
}

/// Gradients of 4 MiB each: every layer is a bucket.
struct Wide;

const WIDE: usize = 1024;

impl Task for Wide {
    type Model = Vec<Linear>;
    type Batch = Tensor<2>;

    fn model(device: &Device) -> Vec<Linear> {
        let layer = |_| LinearConfig::new(WIDE, WIDE).with_bias(false).init(device);
        (0..4).map(layer).collect()
    }

    fn batch(samples: usize, device: &Device) -> Tensor<2> {
        Tensor::random([samples, WIDE], Distribution::Default, device)
    }

    fn part(batch: &Tensor<2>, samples: Range<usize>) -> Tensor<2> {
        batch.clone().slice([samples])
    }

    fn loss(model: &Vec<Linear>, input: Tensor<2>) -> Tensor<1> {
        let output = model.iter().fold(input, |x, layer| layer.forward(x).tanh());
        output.square().mean()
    }
}

/// Convolutions, each normalised by the samples of all ranks; burn's own normalisation on one device.
#[derive(Module, Debug)]
struct Normed {
    layers: Vec<(Conv2d, BatchNorm)>,
}

impl Normed {
    fn loss(&self, input: Tensor<4>, norm: fn(&BatchNorm, Tensor<4>) -> Tensor<4>) -> Tensor<1> {
        let layer = |x, (conv, own): &(Conv2d, BatchNorm)| norm(own, conv.forward(x)).tanh();
        let output = self.layers.iter().fold(input.clone(), layer);
        (output.mean_dim(2) - input.narrow(2, 0, 1)).square().mean()
    }
}

impl Task for Normed {
    type Model = Self;
    type Batch = Tensor<4>;

    fn model(device: &Device) -> Self {
        let conv = Conv2dConfig::new([3, 3], [3, 3]).with_padding(PaddingConfig2d::Same);
        let layer = |_| (conv.init(device), BatchNormConfig::new(3).init(device));
        let layers = (0..3).map(layer).collect();
        Self { layers }
    }

    fn batch(samples: usize, device: &Device) -> Tensor<4> {
        Tensor::random([samples, 3, 4, 3], Distribution::Default, device)
    }

    fn part(batch: &Tensor<4>, samples: Range<usize>) -> Tensor<4> {
        batch.clone().slice([samples])
    }

    fn loss(model: &Self, input: Tensor<4>) -> Tensor<1> {
        model.loss(input, synchronised_batch_norm)
    }

    fn loss_alone(model: &Self, input: Tensor<4>) -> Tensor<1> {
        model.loss(input, BatchNorm::forward)
    }
}

/// Reads nothing: ranks of one process cannot tell whose its memory is, and plans then go by the sizes of tensors alone.
struct Silent<A = ()>(A);

/// What a silent meter does where it is asked for a failure, as it is behind each operation.
trait Asked: Send + Sync {
    fn asked(&self) -> Option<FailedAllocation> {
        None
    }
}

impl Asked for () {}

impl<A: Asked> Meter for Silent<A> {
    fn read(&self) -> MemoryReading {
        MemoryReading::default()
    }

    fn start_interval(&self) {}

    fn lifetime_peak(&self) -> PeakMemory {
        PeakMemory::default()
    }

    fn failure(&self) -> Option<FailedAllocation> {
        self.0.asked()
    }
}

/// Runs each rank on a thread; results by rank.
fn ranks<T: Send>(count: usize, run: impl Fn(Reducer) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let run = &run;
        let ranks = in_process(count).into_iter();
        let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || run(rank))).collect();
        let results = threads.into_iter().map(|one| one.join().expect("no panic"));
        results.collect()
    })
}
