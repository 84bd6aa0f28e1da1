//! Checkpointed parts of a model that is not a chain.
//!
//! A [`Tape`] is for models with ordinary burn code before, between and after the parts that are worth a checkpoint.
//! [`Tape::checkpoint`] runs a layer without a graph and keeps only its input; [`Tape::backward`] computes all
//! gradients and recomputes those layers when needed.
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
//! gate for each output. burn's backward pass reaches the gates first, which store the gradients of the outputs. At the
//! border, the layer runs again, tracked, from fresh leaves, and a backward pass of that graph alone gives the
//! gradients of its parameters and inputs. The links then pass the inputs' gradients on. So there is one outer backward
//! pass, and burn handles skips, shared values and any other code around checkpoints.
//!
//! burn can run a backward pass inside another if the inner graph has its own leaves, and deadlocks if it touches the
//! outer graph. So the recomputed layer is a copy with fresh leaves, and a checkpoint that uses a tracked tensor from
//! outside is an error before any backward pass starts.
//!
//! # Guarantees
//!
//! Gradients, loss, running statistics and random numbers are those of the plain run that calls [`Device::seed`] before
//! each checkpoint that draws, with [`StepSeed::stage`] of its number, counted from 0; on the CPU backend bit for bit,
//! except that the gradients of three or more uses of one value may be summed in another order.
//!
//! # Limitations
//!
//! - Everything that a checkpoint uses must be its input or a parameter of its module. Captured tensors that require a
//!   gradient are an error.
//! - One backward pass per forward pass, from one scalar. `backward` consumes the tape, so a second call is a compile
//!   error.
//! - Gradients are returned for parameters only, not for other tensors that require a gradient.
//! - An ordinary `loss.backward()` that reaches a checkpoint's output panics, as the gradients of the checkpoint's
//!   parameters would be lost.
//! - There is no planning: every checkpoint keeps its input and runs twice. For chains, use an
//!   [`Executor`](crate::Executor) and a planned schedule.
//!
//! Each checkpoint costs its own backward pass and a copy of its module's handles.
//!
//! # Steps that fail
//!
//! A tape that is dropped without a backward pass, for example by an early return, frees what its step left in burn's
//! graph, except for tensors that are still held: so declare the tape first. If the backward pass fails,
//! [`Tape::backward`] does the same. Before the first checkpoint the tape has no part in the graph, and burn keeps
//! dropped nodes until the next backward pass.

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
    executor::copies::{self, ModuleTensors},
    graph::{Upstream, clear, collect, detached, lone_leaf},
    graph_ops::{BorderCall, Cell, border, gate, link, node_number},
    layer::Layer,
    quiet,
    seed::{Drawing, StepSeed, would_interrupt},
};
use dead_ends::DeadEnds;
use step::TapeStep;

pub use error::TapeError;

/// The checkpoints of one training step. See the [module](self).
pub struct Tape {
    seed: StepSeed,
    checkpoints: usize,
    step: Arc<TapeStep>,
    dead_ends: DeadEnds,
    /// The start of each checkpoint's part of burn's graph. Empty after a backward pass, which frees the graph.
    leaves: Vec<Tensor<1>>,
    /// The device on which random numbers were drawn.
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

    /// Runs a layer now, keeping only its input, and again in the backward pass.
    ///
    /// Only handles of the layer's tensors are copied: its parameters must not change before the backward pass.
    pub fn checkpoint<L>(&mut self, layer: &L, input: L::Input) -> L::Output
    where
        L: Layer + 'static,
    {
        self.run(layer, input, layer.draws_random(), L::forward)
    }

    /// Like [`checkpoint`](Self::checkpoint), for any module (it need not be a [`Layer`]) and a function that runs it.
    ///
    /// The function must give the same output whenever it runs (the tape handles random numbers), and may use no
    /// tensors that require a gradient except its input and the module's parameters.
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
        // Visiting a module initialises its parameters. If the first visit were of the copy without gradients, they
        // would stay without gradients.
        let trains = ModuleTensors::of(module).trains;
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
        let call = BorderCall::new(move || TapeStep::passed(&step, index));
        let leaf = lone_leaf(&device);
        self.leaves.push(leaf.clone());
        let linked = linked(input, leaf, ends, self.dead_ends.clone());
        let anchor = border(linked, call);
        gated(output, anchor, gates, self.dead_ends.clone())
    }

    /// The gradients of all parameters that require one: those of `model`, and those of the modules that ran in
    /// checkpoints.
    ///
    /// `model` contains all parameters that the step used outside checkpoints; it may be a tuple of modules. If there
    /// is an error, what the step left in burn's graph is freed.
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
        // A successful backward pass has freed the graph; otherwise the code below frees it.
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
    /// Without a backward pass, burn's graph would keep what the step left in it until a later one. A backward pass
    /// through the leaf of any checkpoint frees every unreferenced part of its graph.
    fn drop(&mut self) {
        let step = std::mem::take(&mut self.step);
        // A consumed leaf has no backward pass, and burn would keep an entry for the attempt.
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

/// Part of burn 0.22.1's panic message for a graph that an earlier backward pass has consumed (burn-autodiff,
/// `runtime/server.rs`).
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

/// The same values, with the chosen float tensors as the start of a graph.
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

/// Removes the gradients of a module's parameters that were reached only through dead ends.
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

/// `anchor` with the float tensors that have a cell as its parents.
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

/// The float tensors of `output` with `anchor` as their parent.
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
