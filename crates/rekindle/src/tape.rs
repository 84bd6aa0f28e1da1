//! Checkpointed parts of a model that is no chain.
//!
//! A [`Tape`] serves models with ordinary burn code before, between and after the parts that are worth a checkpoint.
//! [`Tape::checkpoint`] runs a layer without a graph and keeps its input alone; [`Tape::backward`] gives the
//! gradients of everything, running those layers again on the way.
//!
//! ```
//! use burn::{module::Module, nn::{Linear, LinearConfig}, prelude::*};
//! use burn::tensor::{Distribution, activation::gelu};
//! use rekindle::{StepSeed, Tape};
//!
//! #[derive(Module, Debug)]
//! struct Model {
//!     before: Linear,
//!     large: Linear,
//!     after: Linear,
//! }
//!
//! impl Model {
//!     fn forward(&self, input: Tensor<2>, tape: &mut Tape) -> Tensor<2> {
//!         let x = self.before.forward(input);
//!         let inner = tape.checkpoint_with(&self.large, x.clone(), |large, x| gelu(large.forward(x)));
//!         self.after.forward(x + inner)
//!     }
//! }
//!
//! let device = Device::flex().autodiff();
//! let linear = || LinearConfig::new(4, 4).init(&device);
//! let model = Model { before: linear(), large: linear(), after: linear() };
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
//! In burn's graph a checkpoint is a row of operations without the layer's own: a link for each input, a border, and a
//! gate for each output. burn's backward comes to the gates, which keep the gradients of the outputs; then to
//! the border, where the layer runs again, tracked, from fresh leaves, and a backward of that graph alone gives the
//! gradients of its parameters and inputs; then to the links, which hand the inputs' gradients on. So there is one
//! backward, and skips, shared values and any other code around checkpoints are burn's business.
//!
//! burn runs a backward inside a backward where the inner graph has leaves of its own, and waits forever where it
//! touches the outer graph. So the layer that runs again is a copy with fresh leaves, and a checkpoint that uses a
//! tracked tensor from outside is an error before any backward starts.
//!
//! # What is promised
//!
//! Gradients, loss, running statistics and random numbers are those of the plain run that calls [`Device::seed`]
//! before each checkpoint that draws, with [`StepSeed::stage`] of its number, counted from 0; on the CPU backend bit
//! for bit. Only where three or more uses of one value add up can they add up in another order.
//!
//! # What it cannot do
//!
//! - A checkpoint must be given all it uses: its input, and the parameters of its module. Captured tensors that want
//!   a gradient are an error.
//! - One backward for one forward, from one scalar. `backward` takes the tape, so a second is a compile error.
//! - Gradients come for parameters, not for tensors of your own that require a gradient.
//! - An ordinary `loss.backward()` that comes to a checkpoint's output panics, as the gradients of the checkpoint's
//!   parameters would be lost.
//! - It plans nothing: every checkpoint keeps its input and runs twice. Chains do better with an
//!   [`Executor`](crate::Executor) and a planned schedule.
//!
//! Each checkpoint costs a backward of its own and a copy of its module's handles.
//!
//! # Steps that fail
//!
//! A tape that is dropped without a backward, as in an early return, frees what its step left in burn's graph, as far as no
//! tensor of the step is still held: let the tape be declared first. Where the backward fails, [`Tape::backward`] does so.
//! Before the first checkpoint a step is burn's alone, whose graph keeps what was dropped until the next backward.

pub(crate) mod dead_ends;
mod error;
mod step;

use std::sync::Arc;

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Device, Gradients, Tensor},
};
use rekindle_plan::StageId;

use crate::{
    activation::{Activation, ActivationMapper, ActivationVisitor, device_of},
    device_errors,
    executor::copies::{self, Tensors},
    graph::{Upstream, clear, collect, detached, lone_leaf},
    graph_ops::{BorderCall, Cell, border, gate, link, node_number},
    layer::Layer,
    quiet,
    seed::{Drawing, StepSeed, would_interrupt},
};
use dead_ends::DeadEnds;
use step::Step;

pub use error::TapeError;

/// The checkpoints of one training step. See the [module](self).
pub struct Tape {
    seed: StepSeed,
    checkpoints: usize,
    step: Arc<Step>,
    dead_ends: DeadEnds,
    /// Where each checkpoint's part of burn's graph starts. Gone when a backward has passed, which frees the graph.
    leaves: Vec<Tensor<1>>,
    /// Where random numbers were drawn.
    seeded: Option<Device>,
    fault: Option<TapeError>,
}

impl Tape {
    /// A tape for one training step with these random numbers.
    #[must_use]
    pub fn new(seed: StepSeed) -> Self {
        Self {
            seed,
            checkpoints: 0,
            step: Arc::default(),
            dead_ends: DeadEnds::default(),
            leaves: Vec::new(),
            seeded: None,
            fault: would_interrupt().then_some(TapeError::Interrupts),
        }
    }

    /// Runs a layer now, keeping its input and nothing inside, and again in the backward.
    ///
    /// The layer is copied by its handles: its parameters must not change before the backward.
    pub fn checkpoint<L>(&mut self, layer: &L, input: L::Input) -> L::Output
    where
        L: Layer + 'static,
    {
        self.run(layer, input, layer.draws_random(), L::forward)
    }

    /// The same for any module and a function that runs it, which need not be a [`Layer`].
    ///
    /// The function must give the same output whenever it runs (random numbers are taken care of), and must use no
    /// tensors that want a gradient but its input's and the module's.
    pub fn checkpoint_with<M, I, O, F>(&mut self, module: &M, input: I, forward: F) -> O
    where
        M: Module + 'static,
        I: Activation,
        O: Activation,
        F: Fn(&M, I) -> O + Send + 'static,
    {
        self.run(module, input, true, forward)
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
        M: Module + 'static,
        I: Activation,
        O: Activation,
        F: Fn(&M, I) -> O + Send + 'static,
    {
        let checkpoint = self.checkpoints;
        self.checkpoints += 1;
        let Some(device) = device_of(&input, module) else {
            return forward(module, input);
        };
        let random = draws.then(|| (device.clone(), self.seed.stage(StageId(checkpoint))));
        let drawing = random.as_ref().and_then(|(device, seed)| {
            self.seeded = Some(device.clone());
            Drawing::seeded(device, *seed)
        });
        // Looking at a module initialises its parameters. A copy without gradients that came first would leave them so.
        let trains = Tensors::of(module).trains;
        let kept = detached(input.clone());
        let output = forward(&copies::untracked(module, false), kept.clone());
        drop(drawing);
        if tracked_floats(&output).contains(&true) {
            self.fault.get_or_insert(TapeError::Captured { checkpoint });
        }
        let output = detached(output);
        let wants_gradient = tracked_floats(&input);
        if !wants_gradient.contains(&true) && !trains {
            return output;
        }

        let ends: Vec<Option<Cell>> = wants_gradient
            .iter()
            .map(|&wanted| wanted.then(Cell::default))
            .collect();
        let gates: Vec<Cell> = tracked_floats(&output)
            .iter()
            .map(|_| Cell::default())
            .collect();
        let module = module.clone();
        let (to_inputs, from_outputs) = (ends.clone(), gates.clone());
        let recompute = Box::new(move |gradients: &mut GradientsParams| {
            let upstream = Upstream(from_outputs.iter().map(Cell::take).collect());
            if upstream.0.iter().all(Option::is_none) {
                return;
            }
            let drawing = random
                .as_ref()
                .and_then(|(device, seed)| Drawing::seeded(device, *seed));
            let module = copies::fresh(&module);
            let input = leaves(kept, wants_gradient);
            let output = forward(&module, input.clone());
            drop(drawing);
            let Some(root) = upstream.seed(output) else {
                return;
            };
            let mut grads = root.backward();
            collect(&module, &mut grads, gradients);
            let upstream = Upstream::take(&input, &mut grads);
            for (end, gradient) in to_inputs.iter().zip(upstream.0) {
                if let Some(end) = end {
                    end.put(gradient);
                }
            }
        });
        let index = self.step.add(recompute);
        let step = Arc::downgrade(&self.step);
        let call = BorderCall::new(move || Step::passed(&step, index));
        let leaf = lone_leaf(&device);
        self.leaves.push(leaf.clone());
        let linked = linked(input, leaf, ends, self.dead_ends.clone());
        let anchor = border(linked, call);
        gated(output, anchor, gates, self.dead_ends.clone())
    }

    /// The gradients of all parameters that want one: those of `model`, and those of the modules that ran in
    /// checkpoints.
    ///
    /// `model` is everything whose parameters the step used outside checkpoints; a tuple of modules will do. Where there is
    /// an error, what the step left in burn's graph is freed.
    ///
    /// ```compile_fail
    /// # use burn::{nn::Linear, prelude::*};
    /// # use rekindle::Tape;
    /// fn twice(tape: Tape, loss: Tensor<1>, model: &Linear) {
    ///     let _ = tape.backward(loss.clone(), model);
    ///     let _ = tape.backward(loss, model); // the tape is gone
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// A [`TapeError`] wherever gradients would be wrong.
    pub fn backward<M: Module>(
        mut self,
        loss: Tensor<1>,
        model: &M,
    ) -> Result<GradientsParams, TapeError> {
        let device = loss.device();
        let gradients = self.gradients(loss, model);
        let gradients = match device_errors::settled(&device) {
            Some(panic) if gradients.is_ok() => Err(TapeError::Burn { panic }),
            _ => gradients,
        };
        // The graph is freed by the backward that has passed, or else by what follows here.
        self.leaves.clear();
        if gradients.is_err() {
            self.step = Arc::default();
            // A device that failed may fail in this, too.
            let _ = quiet::catch(|| clear(model, &device));
        }
        gradients
    }

    fn gradients<M: Module>(
        &mut self,
        loss: Tensor<1>,
        model: &M,
    ) -> Result<GradientsParams, TapeError> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let [elements] = loss.dims();
        if elements != 1 {
            return Err(TapeError::LossNotScalar { elements });
        }
        let root = node_number(&loss).filter(|_| loss.is_tracked());
        let Some(root) = root else {
            return Err(TapeError::LossUntracked);
        };
        self.dead_ends.start(root);
        let running = self.step.start();
        let result = quiet::catch(|| loss.backward());
        let met_another = running.met_another_tape();
        drop(running);
        let mut grads = result.map_err(|panic| {
            if panic.contains(CONSUMED) {
                TapeError::Consumed
            } else {
                TapeError::Burn { panic }
            }
        })?;
        if let Some(panic) = self.step.failure() {
            return Err(TapeError::Burn { panic });
        }
        if met_another {
            return Err(TapeError::OtherTape);
        }
        let mut gradients = self.step.take_gradients();
        if self.dead_ends.unreadable() {
            return Err(TapeError::Unreadable);
        }
        forget(model, &mut grads, &self.dead_ends);
        collect(model, &mut grads, &mut gradients);
        if let Some(device) = &self.seeded {
            drop(Drawing::seeded(device, self.seed.after()));
        }
        Ok(gradients)
    }
}

impl Drop for Tape {
    /// Without a backward, burn's graph would keep what the step left in it until a later backward. A backward through
    /// the leaf of any checkpoint frees all of its graph that nobody holds.
    fn drop(&mut self) {
        let step = std::mem::take(&mut self.step);
        // A leaf that is used up has no backward, and burn would keep an entry of the one that was tried.
        if step.is_used_up() {
            return;
        }
        drop(step);
        for leaf in self.leaves.drain(..) {
            // A device that failed may fail in this, too.
            let _ = quiet::catch(|| leaf.backward());
        }
    }
}

/// What burn 0.22.1 says of a graph that an earlier backward has used (burn-autodiff, `runtime/server.rs`).
const CONSUMED: &str = "already been consumed";

/// Whether each float tensor, in visiting order, is part of a graph.
fn tracked_floats<A: Activation>(activation: &A) -> Vec<bool> {
    struct Look(Vec<bool>);
    impl ActivationVisitor for Look {
        fn float<const D: usize>(&mut self, tensor: &Tensor<D>) {
            self.0.push(tensor.is_tracked());
        }
    }
    let mut look = Look(Vec::new());
    activation.visit(&mut look);
    look.0
}

/// The same values, the chosen float tensors as the start of a graph.
fn leaves<A: Activation>(activation: A, chosen: Vec<bool>) -> A {
    struct Leaves(std::vec::IntoIter<bool>);
    impl ActivationMapper for Leaves {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            match self.0.next() {
                Some(true) => tensor.require_grad(),
                _ => tensor,
            }
        }
    }
    activation.map(&mut Leaves(chosen.into_iter()))
}

/// Takes out the gradients of a module's parameters that nothing but dead ends led to.
fn forget<M: Module>(module: &M, grads: &mut Gradients, dead_ends: &DeadEnds) {
    struct Forget<'a> {
        grads: &'a mut Gradients,
        dead_ends: &'a DeadEnds,
    }
    impl ModuleVisitor for Forget<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = param.val();
            if node_number(&tensor).is_some_and(|node| !self.dead_ends.is_live(node)) {
                drop(tensor.grad_remove(self.grads));
            }
        }
    }
    module.visit(&mut Forget { grads, dead_ends });
}

/// `anchor`, made from the float tensors that have a cell.
fn linked<A: Activation>(
    input: A,
    anchor: Tensor<1>,
    cells: Vec<Option<Cell>>,
    dead_ends: DeadEnds,
) -> Tensor<1> {
    struct Link {
        anchor: Tensor<1>,
        cells: std::vec::IntoIter<Option<Cell>>,
        dead_ends: DeadEnds,
    }
    impl ActivationVisitor for Link {
        fn float<const D: usize>(&mut self, tensor: &Tensor<D>) {
            if let Some(Some(cell)) = self.cells.next() {
                let dead_ends = self.dead_ends.clone();
                self.anchor = link(self.anchor.clone(), tensor.clone(), cell, dead_ends);
            }
        }
    }
    let mut chain = Link {
        anchor,
        cells: cells.into_iter(),
        dead_ends,
    };
    input.visit(&mut chain);
    chain.anchor
}

/// The float tensors of `output`, made from `anchor`.
fn gated<A: Activation>(output: A, anchor: Tensor<1>, cells: Vec<Cell>, dead_ends: DeadEnds) -> A {
    struct Gate {
        anchor: Tensor<1>,
        cells: std::vec::IntoIter<Cell>,
        dead_ends: DeadEnds,
    }
    impl ActivationMapper for Gate {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            match self.cells.next() {
                Some(cell) => gate(self.anchor.clone(), tensor, cell, self.dead_ends.clone()),
                None => tensor,
            }
        }
    }
    output.map(&mut Gate {
        anchor,
        cells: cells.into_iter(),
        dead_ends,
    })
}
