//! The same forward code, run plainly or on a tape.

use burn::{module::AutodiffModule, tensor::backend::Backend};
use rekindle::{Activation, Layer, StepSeed, Tape};
use rekindle_plan::StageId;

use crate::B;

pub trait Run {
    fn checkpoint<L>(&mut self, layer: &L, input: L::Input) -> L::Output
    where
        L: Layer<B> + AutodiffModule<B> + 'static;

    fn share<A: Activation<B>>(&mut self, value: A) -> A;
}

impl Run for Tape<B> {
    fn checkpoint<L>(&mut self, layer: &L, input: L::Input) -> L::Output
    where
        L: Layer<B> + AutodiffModule<B> + 'static,
    {
        Tape::checkpoint(self, layer, input)
    }

    fn share<A: Activation<B>>(&mut self, value: A) -> A {
        Tape::share(self, value)
    }
}

/// Ordinary burn code: no tape, the same seeds.
pub struct Plain {
    pub seed: StepSeed,
    pub checkpoints: usize,
}

impl Run for Plain {
    fn checkpoint<L>(&mut self, layer: &L, input: L::Input) -> L::Output
    where
        L: Layer<B> + AutodiffModule<B> + 'static,
    {
        if layer.draws_random() {
            let seed = self.seed.stage(StageId(self.checkpoints));
            B::seed(&Default::default(), seed);
        }
        self.checkpoints += 1;
        layer.forward(input)
    }

    fn share<A: Activation<B>>(&mut self, value: A) -> A {
        value
    }
}
