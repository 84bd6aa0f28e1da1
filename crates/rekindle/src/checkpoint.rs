//! Gradient checkpointing in its shortest form, for models whose layers read values of tensors and so cannot be
//! [recorded](crate::record()).
//!
//! A chain of layers is cut into segments. The forward pass keeps only the activations between them, the *boundaries*. The
//! backward pass takes the segments from the last to the first: each runs forward again from its boundary, now with
//! burn's graph, and backward from the gradient that the segment after it has left. With K segments of equal layers, K
//! boundaries and the activations of one segment are held at a time (Chen et al. 2016, arXiv:1604.06174). Only the last
//! segment runs forward once: its backward pass follows at once.
//!
//! Three things make a recomputed segment compute what it computed before:
//!
//! - **Random numbers.** The generator is seeded before each run of a segment, by [`StepSeed::segment`].
//! - **Running statistics.** The first run updates them; the second uses a copy of the layers with statistics of its own.
//! - **Gradients.** They reach the parameters' ids, so those of a layer that is used in two segments add up.

use burn::{
    backend::{DispatchTensor, TensorMetadata},
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Gradients, Tensor},
};
use thiserror::Error;

use crate::{
    layer::Layer,
    quiet,
    record::Place,
    seed::StepSeed,
    sequential::Sequential,
    step_result::StepResult,
    tensor_tree::{TensorMapper, TensorTree, TensorVisitor, device_of, map_alike},
};

/// What a step gives.
#[derive(Debug)]
pub struct Checkpointed<T> {
    /// The loss, shape `[1]`.
    pub loss: Tensor<1>,
    /// The auxiliary output of the loss closure, detached.
    pub auxiliary: T,
    /// The gradient of every parameter that requires one, for any burn optimizer.
    pub gradients: GradientsParams,
}

/// A step could not run. Running statistics may have changed if the error came after a forward pass.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CheckpointError {
    /// The number of segments does not fit the model.
    #[error("cannot cut {layers} layers into {segments} segments: use 1 to {layers}")]
    Segments {
        /// The requested number.
        segments: usize,
        /// Layers of the model.
        layers: usize,
    },
    /// The loss has more than one value.
    #[error(
        "the loss must be one number (shape [1]), but has shape [{elements}]: take its mean or sum"
    )]
    LossNotScalar {
        /// Number of values.
        elements: usize,
    },
    /// A segment's second run returned tensors of other shapes than its first.
    #[error(
        "segment {segment} gave tensors of other shapes when it was computed again: a layer has state that a forward changes"
    )]
    OtherShapes {
        /// The segment, from 0.
        segment: usize,
    },
    /// The device rejected a kernel of this step, or of earlier work: its results were not computed.
    #[error("the device refused a kernel: {refusal}")]
    Refused {
        /// The device's error message.
        refusal: String,
    },
}

/// Forward, loss and backward pass with `segments` checkpointed segments of equally many layers; the last one has the
/// rest. Modelled on PyTorch's `checkpoint_sequential(functions, segments, input)`, which returns the output and recomputes
/// when the caller runs `backward`: here the loss is a closure, and the gradients are returned with it.
///
/// `loss` receives the chain's output and returns the loss of shape `[1]`, alone or in a pair with auxiliary output. It may
/// use the model's parameters, for a penalty on them. It must not draw random numbers.
///
/// Loss, gradients and running statistics are those of a plain loop that seeds the generator in the same way; on the CPU
/// backend bit for bit. Layers draw from the generator that [`Device::seed`](burn::tensor::Device::seed) seeds, and
/// [`StepSeed::draw`] takes this step's seed from it. Meanwhile no other thread may draw.
///
/// # Errors
///
/// See [`CheckpointError`].
pub fn checkpoint_sequential<L, A, R, F>(
    model: &Sequential<L>,
    segments: usize,
    input: A,
    loss: F,
) -> Result<Checkpointed<R::Auxiliary>, CheckpointError>
where
    A: TensorTree,
    L: Layer<Input = A, Output = A>,
    R: StepResult,
    F: FnOnce(A) -> R,
{
    let layers = &model.layers;
    if segments == 0 || segments > layers.len() {
        let layers = layers.len();
        return Err(CheckpointError::Segments { segments, layers });
    }
    let device = device_of(&input, model).unwrap_or_default();
    let seed = StepSeed::draw(&device);
    let run = |number: usize, layers: &[L], input: A| {
        device.seed(seed.segment(number));
        layers.iter().fold(input, |x, layer| layer.forward(x))
    };
    let equal = layers.len() / segments;
    let (first, last) = layers.split_at(equal * (segments - 1));
    let first: Vec<&[L]> = first.chunks(equal).collect();
    // Nothing below the first segment that trains needs a gradient. This also creates all parameters: copies share them.
    let trained: Vec<bool> = first.iter().map(|segment| trains(segment)).collect();
    let frozen = trained.iter().take_while(|trains| !**trains).count();

    let mut boundaries = vec![detached(input)];
    for (number, segment) in first.iter().enumerate() {
        let untracked = segment.iter().map(|layer| layer.clone().no_grad());
        let untracked: Vec<L> = untracked.collect();
        let output = run(number, &untracked, boundaries[number].clone());
        boundaries.push(detached(output));
    }

    let boundary = leaf(boundaries.remove(first.len()), first.len() > frozen);
    let output = run(first.len(), last, boundary.clone());
    let (loss, auxiliary) = loss(output).split();
    let [elements] = loss.dims();
    if elements != 1 {
        if loss.is_tracked() {
            // burn frees a graph only by its backward pass.
            drop(loss.sum().backward());
        }
        return Err(CheckpointError::LossNotScalar { elements });
    }
    let auxiliary = detached(auxiliary);
    let value = loss.clone().inner();
    let mut gradients = GradientsParams::new();
    // The loss may contain a penalty on any parameter, so the whole model is asked.
    let mut upstream = loss
        .is_tracked()
        .then(|| backward(loss, model, &boundary, &mut gradients));
    for (number, boundary) in boundaries.into_iter().enumerate().skip(frozen).rev() {
        let Some(gradient) = upstream.take() else {
            break;
        };
        let copies = first[number].iter().map(|layer| layer.valid().train());
        let copies: Vec<L> = copies.collect();
        let boundary = leaf(boundary, number > frozen);
        let output = run(number, &copies, boundary.clone());
        let (root, fits) = rooted(output, gradient);
        upstream = root.map(|root| backward(root, &copies, &boundary, &mut gradients));
        if !fits {
            return Err(CheckpointError::OtherShapes { segment: number });
        }
    }
    device.seed(seed.after());
    // A kernel is refused when the device gets to it. Other errors are reported when values are read.
    let _ = device.sync();
    if let Some(refusal) = quiet::take_refusal() {
        return Err(CheckpointError::Refused { refusal });
    }
    Ok(Checkpointed {
        loss: value,
        auxiliary,
        gradients,
    })
}

/// Whether any parameter requires a gradient.
fn trains<L: Module>(layers: &[L]) -> bool {
    let places = layers.iter().flat_map(Place::of);
    places.fold(false, |any, place| any | place.trains)
}

/// The same values without a graph, still on the device with autodiff.
fn detached<A: TensorTree>(activation: A) -> A {
    struct Detach;
    map_alike!(Detach, |self, tensor| { tensor.inner().autodiff() });
    activation.map(&mut Detach)
}

/// The same values, as the start of a graph if their gradients are needed.
fn leaf<A: TensorTree>(boundary: A, needed: bool) -> A {
    struct Leaf(bool);
    impl TensorMapper for Leaf {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            tensor.set_require_grad(self.0)
        }
    }
    boundary.map(&mut Leaf(needed))
}

/// Runs a backward pass. Adds the gradients of the module's parameters to those already collected, and returns the
/// gradients of the boundary's float tensors, in visiting order; `None` where the root does not depend on a tensor.
fn backward<M: Module, A: TensorTree>(
    root: Tensor<1>,
    module: &M,
    boundary: &A,
    collected: &mut GradientsParams,
) -> Vec<Option<DispatchTensor>> {
    struct Take<'a> {
        passed: Gradients,
        parameters: &'a mut GradientsParams,
        boundary: Vec<Option<DispatchTensor>>,
    }
    impl ModuleVisitor for Take<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let Some(gradient) = param.val().grad_remove(&mut self.passed) else {
                return;
            };
            let sum = match self.parameters.remove::<D>(param.id) {
                None => gradient,
                Some(earlier) => earlier + gradient,
            };
            self.parameters.register::<D>(param.id, sum);
        }
    }
    impl TensorVisitor for Take<'_> {
        fn float<const D: usize>(&mut self, tensor: &Tensor<D>) {
            let gradient = tensor.grad_remove(&mut self.passed);
            self.boundary.push(gradient.map(Tensor::into_dispatch));
        }
    }
    let mut take = Take {
        passed: root.backward(),
        parameters: collected,
        boundary: Vec::new(),
    };
    module.visit(&mut take);
    boundary.visit(&mut take);
    take.boundary
}

/// A scalar whose backward pass gives `output` these gradients, the sum of their products, if any can flow; and whether the
/// gradients are those of as many tensors with the same shapes.
fn rooted<A: TensorTree>(
    output: A,
    gradient: Vec<Option<DispatchTensor>>,
) -> (Option<Tensor<1>>, bool) {
    struct Root {
        gradient: std::vec::IntoIter<Option<DispatchTensor>>,
        root: Option<Tensor<1>>,
        fits: bool,
    }
    impl TensorVisitor for Root {
        fn float<const D: usize>(&mut self, tensor: &Tensor<D>) {
            let gradient = self.gradient.next();
            self.fits &= gradient.is_some();
            let Some(gradient) = gradient.flatten().filter(|_| tensor.is_tracked()) else {
                return;
            };
            let fits = gradient.shape() == tensor.shape();
            self.fits &= fits;
            let part = if fits {
                tensor.clone() * Tensor::from_dispatch(gradient).autodiff()
            } else {
                tensor.clone()
            };
            self.root = Some(match self.root.take() {
                None => part.sum(),
                Some(root) => root + part.sum(),
            });
        }
    }
    let mut root = Root {
        gradient: gradient.into_iter(),
        root: None,
        fits: true,
    };
    output.visit(&mut root);
    (root.root, root.fits && root.gradient.next().is_none())
}
