//! Checkpointed parts of a model that is no chain.
//!
//! A [`Tape`] serves models with ordinary burn code before, between and after the parts that are worth a checkpoint.
//! [`Tape::checkpoint`] runs a layer without a graph and keeps its input alone; [`Tape::backward`] gives the
//! gradients of everything, running those layers again on the way.
//!
//! ```
//! use burn::{backend::{Autodiff, Flex}, module::Module, nn::{Linear, LinearConfig}, prelude::*};
//! use burn::tensor::{Distribution, activation::gelu};
//! use rekindle::{CheckpointBackend, StepSeed, Tape};
//!
//! #[derive(Module, Debug)]
//! struct Model<B: Backend> {
//!     before: Linear<B>,
//!     large: Linear<B>,
//!     after: Linear<B>,
//! }
//!
//! impl<B: CheckpointBackend> Model<B> {
//!     fn forward(&self, input: Tensor<B, 2>, tape: &mut Tape<B>) -> Tensor<B, 2> {
//!         let x = tape.share(self.before.forward(input));
//!         let inner = tape.checkpoint_with(&self.large, x.clone(), |large, x| gelu(large.forward(x)));
//!         self.after.forward(x + inner)
//!     }
//! }
//!
//! type B = Autodiff<Flex>;
//! let device = Default::default();
//! let linear = || LinearConfig::new(4, 4).init(&device);
//! let model = Model::<B> { before: linear(), large: linear(), after: linear() };
//!
//! let mut tape = Tape::new(StepSeed::new(0, 0));
//! let input = Tensor::random([8, 4], Distribution::Default, &device);
//! let loss = model.forward(input, &mut tape).powf_scalar(2.0).mean();
//! let gradients = tape.backward(loss, &model)?;
//! assert_eq!(gradients.len(), 6);
//! # Ok::<(), rekindle::tape::TapeError>(())
//! ```
//!
//! # How it works
//!
//! burn 0.21 cannot run a backward inside a backward, and a backward consumes the graph it runs through. So the graph
//! is cut: what a checkpoint returns is a fresh leaf, and the tape notes where its input ends in the graph before.
//! The backward is a row of sweeps. The first starts at the loss and brings the gradient of the last checkpoint's
//! output. The checkpoint runs again, tracked, from a fresh leaf of its input; a sweep from that gradient gives those
//! of its parameters and of its input, and so on to the first.
//!
//! Ordinary code between two cuts is swept once, from all its ends together: node numbers grow as nodes are made, so an
//! end made after cut k has a larger number than k's leaves and is due just before the gradients of those are read,
//! and every gradient that such an end gets comes from a cut after k. A leaf or parameter that several sweeps reach
//! gets their sum.
//!
//! # Skips, and [`Tape::share`]
//!
//! Ordinary code can be swept once. A value that ordinary code computed, and that leads both into a checkpoint and past
//! it, would be swept from the later use before the checkpoint's gradient is there. [`Tape::share`] makes it a leaf,
//! where gradients can meet. It is needed for no other values: inputs and parameters are leaves, and so are the
//! outputs of checkpoints; and a value that only checkpoints use is one end of graph. A share that is missing is an error of [`Tape::backward`], never a wrong gradient:
//! every sweep is checked to have gone on wherever a gradient came to ([`swept`](crate::swept)).
//!
//! # What is promised
//!
//! Gradients, loss, running statistics and random numbers are those of the plain run that calls
//! [`Backend::seed`](burn::tensor::backend::Backend::seed) before each checkpoint that draws, with
//! [`StepSeed::stage`] of its number, counted from 0; on the CPU backend bit for bit. Only where three or more uses of
//! one value add up can they add up in another order.
//!
//! # What it cannot do
//!
//! - A checkpoint must be given all it uses: its input, and the parameters of its module. Captured tensors that want
//!   a gradient are an error.
//! - One backward for one forward, from one scalar. `backward` takes the tape, so a second is a compile error.
//! - Gradients come for parameters, not for tensors of your own that require a gradient. Where one of those is used on
//!   both sides of a checkpoint, hold it until the backward is over (which mostly suffices), and update the parameters
//!   after every step: burn deletes what was made from a leaf that an earlier backward has reached, and the tape then
//!   gives an error. For the same reason a step may be refused whose parameters were used in ordinary code that no
//!   backward has come to: after a tape that was dropped or gave an error, update them or make the model's leaves anew
//!   (`Model::from_inner(model.valid())`).
//! - An ordinary `loss.backward()` that comes to a checkpoint's output before the tape has panics. After
//!   `Tape::backward` the outputs are mere values, as any tensor whose graph has been used is in burn: a second loss
//!   made from one is an error to another tape, but an ordinary backward stops there in silence.
//! - It plans nothing: every checkpoint keeps its input and runs twice. Chains do better with an
//!   [`Executor`](crate::Executor) and a planned schedule.
//!
//! Each checkpoint costs a backward of its own and a copy of its module's handles; the check reads the graph's node
//! numbers in each sweep.

mod backward;
mod cut;
mod error;
mod guard;
mod sweeper;

use std::collections::HashMap;

use burn::{
    module::{AutodiffModule, Module, ModuleVisitor, Param},
    tensor::{Tensor, ops::FloatTensor},
};
use rekindle_plan::StageId;

use crate::{
    activation::Activation,
    backend::CheckpointBackend,
    executor::{
        copies::{self, Tensors},
        machine::device_of,
    },
    graph::{Upstream, detached},
    layer::Layer,
    seed::{Drawing, StepSeed},
};
use cut::{Cut, Recompute, each_float, replace};

pub use error::{TapeError, TapePart};

/// The checkpoints of one training step. See the [module](self).
pub struct Tape<B: CheckpointBackend> {
    number: u64,
    seed: StepSeed,
    checkpoints: usize,
    shares: usize,
    cuts: Vec<Cut<B>>,
    /// The tensors after the cuts, by node number: which cut, and which of its leaves.
    places: HashMap<u64, (usize, usize)>,
    /// Where random numbers were drawn.
    seeded: Option<B::Device>,
    fault: Option<TapeError>,
}

impl<B: CheckpointBackend> Tape<B> {
    /// A tape for one training step with these random numbers.
    #[must_use]
    pub fn new(seed: StepSeed) -> Self {
        Self {
            number: cut::new_tape(),
            seed,
            checkpoints: 0,
            shares: 0,
            cuts: Vec::new(),
            places: HashMap::new(),
            seeded: None,
            fault: None,
        }
    }

    /// Runs a layer now, keeping its input and nothing inside, and again in the backward.
    ///
    /// The layer is copied by its handles: its parameters must not change before the backward.
    pub fn checkpoint<L>(&mut self, layer: &L, input: L::Input) -> L::Output
    where
        L: Layer<B> + AutodiffModule<B> + 'static,
    {
        self.run(layer, input, layer.draws_random(), L::forward)
    }

    /// The same for any module and a function that runs it, which need not be a [`Layer`].
    ///
    /// The function must give the same output whenever it runs (random numbers are taken care of), and must use no
    /// tensors that want a gradient but its input's and the module's.
    pub fn checkpoint_with<M, I, O, F>(&mut self, module: &M, input: I, forward: F) -> O
    where
        M: AutodiffModule<B> + 'static,
        I: Activation<B>,
        O: Activation<B>,
        F: Fn(&M, I) -> O + 'static,
    {
        self.run(module, input, true, forward)
    }

    /// The same value, as a leaf in which the gradients of several uses meet.
    ///
    /// Wanted for a value from ordinary code that a checkpoint uses and that is used elsewhere too, as in a skip
    /// around the checkpoint. Use what this returns in all places, and the value given no more. Where no gradient
    /// flows, or where the value is such a leaf already, it comes back as it is.
    #[must_use]
    pub fn share<A: Activation<B>>(&mut self, value: A) -> A {
        let part = TapePart::Share(self.shares);
        self.shares += 1;
        let mut chosen = Vec::new();
        let mut ends = Vec::new();
        each_float::<B, A>(&value, |tensor| {
            let here = self.places.contains_key(&B::node_number(&tensor));
            let cut = B::is_tracked(&tensor) && !here;
            chosen.push(cut);
            if cut {
                ends.push(Some(B::hollow(&tensor)));
            }
        });
        self.cut(part, ends, value, &chosen, None)
    }

    /// Number of checkpoints so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.checkpoints
    }

    /// Whether there is no checkpoint yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.checkpoints == 0
    }

    fn run<M, I, O, F>(&mut self, module: &M, input: I, draws: bool, forward: F) -> O
    where
        M: AutodiffModule<B> + 'static,
        I: Activation<B>,
        O: Activation<B>,
        F: Fn(&M, I) -> O + 'static,
    {
        // Looking at every parameter also initialises the lazy ones: a lazy parameter draws anew in each copy.
        let holds_statistics = Tensors::of::<B, M>(module).may_hold_statistics;
        let number = self.checkpoints;
        let part = TapePart::Checkpoint(number);
        self.checkpoints += 1;

        let mut ends = Vec::new();
        each_float::<B, I>(&input, |tensor| {
            ends.push(B::is_tracked(&tensor).then(|| B::hollow(&tensor)));
        });
        let random = draws
            .then(|| device_of::<B, I, M>(&input, module))
            .flatten()
            .map(|device| (device, self.seed.stage(StageId(number))));
        let drawing = random.as_ref().and_then(|(device, seed)| {
            self.seeded = Some(device.clone());
            Drawing::seeded::<B>(device, *seed)
        });
        let input = detached(input);
        let output = forward(&copies::untracked::<B, M>(module, false), input.clone());
        drop(drawing);
        let mut floats = 0;
        each_float::<B, O>(&output, |tensor| {
            floats += 1;
            if B::is_tracked(&tensor) {
                self.fault.get_or_insert(TapeError::Captured { part });
            }
        });
        let output = detached(output);
        let wants_gradient: Vec<bool> = ends.iter().map(Option::is_some).collect();
        if !wants_gradient.contains(&true) && !has_parameters_to_train::<B, M>(module) {
            return output;
        }

        let module = module.clone();
        let recompute: Recompute<B> = Box::new(move |upstream, sweeper| {
            let drawing = random
                .as_ref()
                .and_then(|(device, seed)| Drawing::seeded::<B>(device, *seed));
            let module = copies::tracked::<B, M>(&module, holds_statistics);
            let input = replace(input, &wants_gradient, cut::fresh_leaf::<B>);
            let output = forward(module.as_ref(), input.clone());
            drop(drawing);
            let Some(root) = upstream.seed(output) else {
                return Ok(Upstream(wants_gradient.iter().map(|_| None).collect()));
            };
            sweeper.know_parameters::<B, M>(module.as_ref());
            // burn may keep a leaf in another graph than what is made from it later: it is not in every tree.
            each_float::<B, I>(&input, |leaf| sweeper.know([B::node_number(&leaf)]));
            let ends = [(B::node_number(&root), part)];
            let (mut grads, _) = sweeper.sweep::<B>(root, &ends)?;
            sweeper.collect::<B, M>(module.as_ref(), &mut grads);
            Ok(Upstream::take(&input, &mut grads))
        });
        self.cut(part, ends, output, &vec![true; floats], Some(recompute))
    }

    /// Cuts the graph: the chosen tensors come back as leaves.
    fn cut<A: Activation<B>>(
        &mut self,
        part: TapePart,
        ends: Vec<Option<FloatTensor<B>>>,
        value: A,
        chosen: &[bool],
        recompute: Option<Recompute<B>>,
    ) -> A {
        let mut leaves = Vec::new();
        let value = replace(value, chosen, |tensor| {
            let (guarded, leaf) = cut::beyond::<B>(self.number, tensor);
            leaves.push(leaf);
            guarded
        });
        if !leaves.is_empty() {
            for (index, leaf) in leaves.iter().enumerate() {
                let place = (self.cuts.len(), index);
                self.places.insert(B::node_number(&leaf.guarded), place);
            }
            self.cuts.push(Cut {
                part,
                ends,
                leaves,
                recompute,
            });
        }
        value
    }
}

/// Whether any parameter wants a gradient.
fn has_parameters_to_train<B: CheckpointBackend, M: Module<B>>(module: &M) -> bool {
    struct Look(bool);
    impl<B: CheckpointBackend> ModuleVisitor<B> for Look {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0 |= param.val().is_require_grad();
        }
    }
    let mut look = Look(false);
    module.visit(&mut look);
    look.0
}
