//! The same forward code, run plainly or on a tape.

use burn::{module::AutodiffModule, tensor::backend::Backend};
use rekindle::{Activation, Layer, StepSeed, Tape};
use rekindle_plan::StageId;

use crate::B;

pub trait Run {
    fn checkpoint<L>(&mut self, layer: &L, input: L::Input) -> L::Output
    where
        L: Layer<B> + AutodiffModule<B> + 'static;

    fn checkpoint_with<M, I, O, F>(&mut self, module: &M, input: I, forward: F) -> O
    where
        M: AutodiffModule<B> + 'static,
        I: Activation<B>,
        O: Activation<B>,
        F: Fn(&M, I) -> O + 'static;

    fn share<A: Activation<B>>(&mut self, value: A) -> A;
}

impl Run for Tape<B> {
    fn checkpoint<L>(&mut self, layer: &L, input: L::Input) -> L::Output
    where
        L: Layer<B> + AutodiffModule<B> + 'static,
    {
        Tape::checkpoint(self, layer, input)
    }

    fn checkpoint_with<M, I, O, F>(&mut self, module: &M, input: I, forward: F) -> O
    where
        M: AutodiffModule<B> + 'static,
        I: Activation<B>,
        O: Activation<B>,
        F: Fn(&M, I) -> O + 'static,
    {
        Tape::checkpoint_with(self, module, input, forward)
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

impl Plain {
    /// Before what a tape would checkpoint.
    fn enter(&mut self, draws: bool) {
        if draws {
            let seed = self.seed.stage(StageId(self.checkpoints));
            B::seed(&Default::default(), seed);
        }
        self.checkpoints += 1;
    }
}

impl Run for Plain {
    fn checkpoint<L>(&mut self, layer: &L, input: L::Input) -> L::Output
    where
        L: Layer<B> + AutodiffModule<B> + 'static,
    {
        self.enter(layer.draws_random());
        layer.forward(input)
    }

    fn checkpoint_with<M, I, O, F>(&mut self, module: &M, input: I, forward: F) -> O
    where
        M: AutodiffModule<B> + 'static,
        I: Activation<B>,
        O: Activation<B>,
        F: Fn(&M, I) -> O + 'static,
    {
        self.enter(true);
        forward(module, input)
    }

    fn share<A: Activation<B>>(&mut self, value: A) -> A {
        value
    }
}
