//! Errors of layers that cannot take their input.

use std::fmt;

use super::spec::SampleShape;

/// The position of a layer: its index in the model's list, then its index inside each enclosing residual.
///
/// All indices start at 0. An empty path means the model itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct LayerPath(pub Vec<usize>);

/// `3`, or `3.0.1` for a layer inside residuals.
impl fmt::Display for LayerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (depth, index) in self.0.iter().enumerate() {
            let dot = if depth == 0 { "" } else { "." };
            write!(f, "{dot}{index}")?;
        }
        Ok(())
    }
}

/// An invalid layer: its settings are wrong, or do not fit its input.
///
/// Reads as `layer 2 (conv2d) got [784]: it wants [channels, height, width]; ...`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{} got {got}: {problem}", self.place())]
pub struct ShapeError {
    /// The layer.
    pub path: LayerPath,
    /// The layer's name in a config; `model` if the model itself is wrong.
    pub kind: &'static str,
    /// The shape that reaches the layer.
    pub got: SampleShape,
    /// The problem, and what the layer requires instead.
    pub problem: ShapeProblem,
}

impl ShapeError {
    fn place(&self) -> String {
        if self.path.0.is_empty() {
            self.kind.to_owned()
        } else {
            format!("layer {} ({})", self.path, self.kind)
        }
    }
}

/// The problem with a layer. Each message says what the layer requires.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ShapeProblem {
    /// The input has too few or too many dimensions.
    #[error("it needs {wants}; {advice}")]
    WrongRank {
        /// The dimensions in words, such as `[channels, height, width]`.
        wants: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// Token ids reach a layer that computes with numbers.
    #[error("it needs numbers, not token ids; put an embedding before it")]
    WantsNumbers,
    /// Numbers reach an embedding.
    #[error("it needs token ids, not numbers; an embedding comes first, on an input of token ids")]
    WantsTokens,
    /// A size is 0.
    #[error("`{what}` is 0; it must be at least 1")]
    ZeroSize {
        /// The setting.
        what: &'static str,
    },
    /// A setting lies outside its range.
    #[error("`{what}` is {value}; it must be {range}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: f64,
        /// The range in words.
        range: &'static str,
    },
    /// A window is larger than what it moves over.
    #[error(
        "a kernel of {kernel:?} does not fit in {padded:?}, the height and width with padding; \
         use a smaller kernel, more padding or less pooling before it"
    )]
    KernelTooLarge {
        /// Height and width of the window.
        kernel: [usize; 2],
        /// Height and width of the padded input.
        padded: [usize; 2],
    },
    /// `same` padding cannot be centred on an even kernel.
    #[error(
        "`same` padding needs an odd kernel, not {kernel:?}; use an odd kernel or give the padding in numbers"
    )]
    EvenKernelForSame {
        /// Height and width of the kernel.
        kernel: [usize; 2],
    },
    /// A pooling window could lie in the padding alone.
    #[error(
        "padding {padding:?} is more than half the kernel {kernel:?}; use less padding or a larger kernel"
    )]
    PoolPaddingTooLarge {
        /// Rows and columns on each side.
        padding: [usize; 2],
        /// Height and width of the window.
        kernel: [usize; 2],
    },
    /// The new shape has another number of values.
    #[error(
        "shape {shape:?} holds {wanted} values, but its input has {got}; the numbers must be equal"
    )]
    ReshapeCount {
        /// The new shape.
        shape: Vec<usize>,
        /// Values in it.
        wanted: u64,
        /// Values in the input.
        got: u64,
    },
    /// There is no embedding whose weight could be shared.
    #[error(
        "it shares the weight of the model's one embedding, which must be [{vocab}, {dim}]; the model has {embeddings:?}"
    )]
    NothingToShare {
        /// Token ids.
        vocab: usize,
        /// Length of a vector.
        dim: usize,
        /// Both of each embedding there is.
        embeddings: Vec<[usize; 2]>,
    },
    /// A vector cannot be divided among the heads.
    #[error("{heads} heads do not divide {dim} values; use a number of heads that does")]
    Heads {
        /// How many.
        heads: usize,
        /// Length of a vector.
        dim: usize,
    },
    /// The inner layers of a residual change the shape.
    #[error("its layers turn this into {output}; `x + f(x)` needs equal shapes")]
    ResidualChangesShape {
        /// What comes out of the inner layers.
        output: SampleShape,
    },
    /// The model or residual has no layers.
    #[error("it has no layers; give it at least one")]
    NoLayers,
    /// A group stands in place of its layers.
    #[error("it is a group; put its layers into the list")]
    Folded,
    /// A tensor has more values than fit in any machine's memory.
    #[error("{what} would hold more than {limit} values; use smaller sizes")]
    TooLarge {
        /// Which tensor.
        what: &'static str,
        /// [`MAX_ELEMENTS`](super::shape::MAX_ELEMENTS).
        limit: u64,
    },
}
