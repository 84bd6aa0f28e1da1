//! The same forward code, run plainly or on a tape.

use burn::module::Module;
use rekindle::{Activation, Layer, StepSeed, Tape};
use rekindle_plan::StageId;

use super::device;

pub trait Run {
    fn checkpoint<L>(&mut self, layer: &L, input: L::Input) -> L::Output
    where
        L: Layer + 'static;

    fn checkpoint_with<M, I, O, F>(&mut self, module: &M, input: I, forward: F) -> O
    where
        M: Module + 'static,
        I: Activation,
        O: Activation,
        F: Fn(&M, I) -> O + Send + 'static;
}

impl Run for Tape {
    fn checkpoint<L>(&mut self, layer: &L, input: L::Input) -> L::Output
    where
        L: Layer + 'static,
    {
        Tape::checkpoint(self, layer, input)
    }

    fn checkpoint_with<M, I, O, F>(&mut self, module: &M, input: I, forward: F) -> O
    where
        M: Module + 'static,
        I: Activation,
        O: Activation,
        F: Fn(&M, I) -> O + Send + 'static,
    {
        Tape::checkpoint_with(self, module, input, forward)
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
            device().seed(seed);
        }
        self.checkpoints += 1;
    }
}

impl Run for Plain {
    fn checkpoint<L>(&mut self, layer: &L, input: L::Input) -> L::Output
    where
        L: Layer + 'static,
    {
        self.enter(layer.draws_random());
        layer.forward(input)
    }

    fn checkpoint_with<M, I, O, F>(&mut self, module: &M, input: I, forward: F) -> O
    where
        M: Module + 'static,
        I: Activation,
        O: Activation,
        F: Fn(&M, I) -> O + Send + 'static,
    {
        self.enter(true);
        forward(module, input)
    }
}
