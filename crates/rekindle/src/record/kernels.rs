//! Memory that kernels take besides the tensors of an operation, by kind of operation. The figures are for burn's
//! `flex` backend, from its source (burn-flex 0.22.1) and from burn-backend's default operations.
//!
//! `I`, `W`, `O` are the bytes of input, weight and output, and `G` the bytes of the incoming gradient of a backward
//! operation:
//!
//! | operation | temporary bytes | source |
//! |---|---|---|
//! | zeros, sums over a dimension | `O`: the output is copied once, to be aligned | `tensor.rs`, `FlexTensor::empty` |
//! | products of matrices | the same, or, if that is more, operands laid out in panels | `gemm_basic_generic` of gemm-common 0.19 |
//! | convolution | `I + W`, laid out with channels last, and a tile for each thread | `ops/conv.rs`, `conv3d_impl` |
//! | gradient of its input | the columns of one sample for each thread | `ops/conv_transpose.rs` |
//! | gradient of its weight | a convolution with exchanged dimensions: `2I + 2G` and tiles | `modules/conv.rs` of burn-backend |
//! | gradient of its bias | `G`, with exchanged dimensions | the same |
//! | max pooling | positions of 8 bytes | `ops/pool.rs` |
//! | others | none, and the output reuses the storage of an input that is freed | `ops/binary.rs`, `ops/unary.rs` |
//!
//! Convolutions need their inputs contiguous, and copy those that are not. A GPU's kernels need no copies. Estimated
//! plain peaks of the shipped configs `deep-linear`, `gpt`, `conv-pyramid` and `parity/tokens` are within 0.6% of
//! profiled ones.

use burn_ir::{ModuleOperationIr, OperationIr};

use super::{
    operation::{exchanges_dimensions, flops},
    operations::RecordedOperation,
    recording::Recording,
};

/// Number of positions that a convolution lays out at once, and bytes of columns for a transposed convolution.
const TILE: u64 = 512;
const COLUMNS_BYTES: u64 = 8 << 20;
/// Number of elements from which samples are divided among threads.
const PARALLEL_NUMBERS: u64 = 256 << 10;
/// Maximum numbers of input and output channels for which no copies are made.
const FEW_CHANNELS: (u64, u64) = (4, 16);
/// Number of rows that a panel of a matrix product's operand has, at most.
const PANEL_DEPTH: u64 = 512;
/// Bytes per index of a maximum in max pooling.
const POSITION_BYTES: u64 = 8;
/// Floating-point operations from which a matrix product runs on all threads.
const PARALLEL_FLOPS: f64 = 2.0 * 192.0 * 192.0 * 192.0;

/// The backend whose kernels are assumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// burn's `flex`, on this many threads.
    Host {
        /// Number of threads; each has its own tile in a convolution.
        threads: u64,
        /// Bytes that a thread keeps permanently after its first matrix product.
        slab_bytes: u64,
        /// Numbers of a row that a matrix product computes at once: four vectors, or two without AVX-512.
        panel: u64,
    },
    /// A GPU's, which need no copies.
    Device,
}

/// Memory of an operation besides its inputs and the numbers of its outputs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) temp_bytes: u64,
    /// Bytes of the first output's storage beyond its numbers.
    pub(super) beyond_bytes: u64,
    /// Bytes that threads keep from then on, at most: not every product needs a slab.
    pub(super) kept_bytes: u64,
    /// The input whose storage the first output reuses, if it is freed.
    pub(super) in_place: Option<usize>,
    /// Whether the output is a view of the first input.
    pub(super) view: bool,
}

impl Kernels {
    /// Those of this machine's CPU: one thread per core, with slabs as large as its second-level cache.
    #[cfg(feature = "flex")]
    #[must_use]
    pub fn host() -> Self {
        #[cfg(target_arch = "x86_64")]
        let wide = std::is_x86_feature_detected!("avx512f");
        #[cfg(not(target_arch = "x86_64"))]
        let wide = false;
        Self::Host {
            threads: rayon::current_num_threads() as u64,
            slab_bytes: gemm_common::cache::CACHE_INFO[1].cache_bytes as u64,
            panel: if wide { 64 } else { 16 },
        }
    }

    /// Memory of each operation when operations run in recorded order.
    pub(super) fn taken(self, recording: &Recording) -> Vec<Taken> {
        let last_read = last_read(recording);
        let mut contiguous = vec![true; recording.tensors.len()];
        let operations = recording.operations.iter().enumerate();
        let taken = operations.map(|(place, one)| {
            let name = one.kind.name.as_str();
            let lies_as_made = one.inputs().next().is_none_or(|input| contiguous[input]);
            let strided = matches!(name, "SwapDims" | "Permute" | "Expand" | "Slice");
            let view = strided || name == "Reshape" && lies_as_made;
            for output in one.outputs() {
                contiguous[output] = !strided && !exchanges_dimensions(name);
            }
            let Self::Host {
                threads,
                slab_bytes,
                panel,
            } = self
            else {
                return Taken {
                    view,
                    ..Taken::default()
                };
            };
            let sizes = Sizes {
                recording,
                one,
                threads,
                panel,
                contiguous: &contiguous,
            };
            Taken {
                temp_bytes: if view { 0 } else { sizes.temporary(name) },
                beyond_bytes: sizes.beyond(),
                kept_bytes: sizes.slabs(name) * slab_bytes,
                in_place: sizes.taken_over(name, |input| last_read[input] == Some(place)),
                view,
            }
        });
        taken.collect()
    }
}

/// The last operation that reads each tensor, for tensors whose storage may be reused because nothing outside the step
/// holds them.
fn last_read(recording: &Recording) -> Vec<Option<usize>> {
    let mut last = vec![None; recording.tensors.len()];
    for (place, one) in recording.operations.iter().enumerate() {
        for input in one.inputs() {
            last[input] = Some(place);
        }
    }
    for held in recording.given().chain(recording.outputs()) {
        last[held] = None;
    }
    last
}

/// One operation, and properties of its tensors.
struct Sizes<'a> {
    recording: &'a Recording,
    one: RecordedOperation<'a>,
    threads: u64,
    panel: u64,
    contiguous: &'a [bool],
}

impl Sizes<'_> {
    fn bytes(&self, tensor: usize) -> u64 {
        self.recording.tensors.value_bytes(tensor)
    }

    /// The input whose storage an element-wise operation reuses.
    fn taken_over(&self, name: &str, freed: impl Fn(usize) -> bool) -> Option<usize> {
        let output = self.one.outputs().next()?;
        let same = |input: usize| {
            self.recording.tensors.shape(input) == self.recording.tensors.shape(output)
                && self.bytes(input) == self.bytes(output)
                && self.contiguous[input]
        };
        let inputs = || self.one.inputs().enumerate();
        let fits = |&(_, input): &(usize, usize)| self.one.can_free(input) && same(input);
        // Operations of one kind share one answer: another may free an input that this one keeps.
        let freed_here = inputs().find(|one| fits(one) && freed(one.1));
        let found = freed_here.or_else(|| inputs().find(fits));
        found.map(|(place, _)| place).filter(|_| by_number(name))
    }

    /// Bytes of inputs that are copied because they are not contiguous.
    fn copies(&self) -> u64 {
        let inputs = self.one.inputs().filter(|&input| !self.contiguous[input]);
        inputs.map(|input| self.bytes(input)).sum()
    }

    fn temporary(&self, name: &str) -> u64 {
        let inputs: Vec<usize> = self.one.inputs().collect();
        let Some(output) = self.one.outputs().next() else {
            return 0;
        };
        let numbers = self.bytes(output);
        match (name, inputs.as_slice()) {
            ("Zeros" | "SumDim" | "EmbeddingBackward", _) => numbers,
            ("Linear", &[x, weight, ..]) => {
                let [inputs, outputs] = self.rows_and_columns(weight);
                let rows = self.rows(x);
                numbers.max(self.panels([rows, inputs, outputs], [false; 2]))
            }
            ("LinearXBackward", &[weight, gradient]) => {
                let [inputs, outputs] = self.rows_and_columns(weight);
                let rows = self.rows(gradient);
                numbers.max(self.panels([rows, outputs, inputs], [false, true]))
            }
            ("LinearWeightBackward", &[x, gradient]) => {
                let [inputs, outputs] = [x, gradient].map(|one| self.rows_and_columns(one)[1]);
                numbers.max(self.panels([inputs, self.rows(x), outputs], [true, false]))
            }
            ("Matmul", &[left, right]) => {
                let [[rows, common], [_, columns]] =
                    [left, right].map(|one| self.rows_and_columns(one));
                let products = self.rows(output) / rows.max(1);
                let strided = [left, right].map(|one| !self.contiguous[one]);
                let panels = self.panels([rows, common, columns], strided);
                numbers.max(self.threads.min(products) * panels)
            }
            ("Conv2d", &[x, weight, ..]) => {
                self.copies() + self.convolution(x, weight, self.dims(output), false)
            }
            ("Conv2dXBackward", &[x, weight, gradient]) => {
                self.copies() + self.columns(x, weight, gradient)
            }
            ("Conv2dWeightBackward", &[x, _, gradient]) => {
                let copies = self.bytes(x) + self.bytes(gradient);
                copies + self.convolution(x, gradient, self.correlated(output), true)
            }
            ("Conv2dBiasBackward", &[.., gradient]) => self.bytes(gradient),
            ("MaxPool2dWithIndices", _) => {
                let positions = self.recording.tensors.shape(output).num_elements() as u64;
                positions * POSITION_BYTES
            }
            _ => 0,
        }
    }

    /// The threads that take a slab for matrix products, at most: not where the columns of the right operand fill no vector,
    /// or where it is strided, as in convolutions. Those are laid out in panels at once.
    fn slabs(&self, name: &str) -> u64 {
        let inputs: Vec<usize> = self.one.inputs().collect();
        let Some(output) = self.one.outputs().next() else {
            return 0;
        };
        let work = flops(name, &self.one.kind.operation);
        let parallel = |products: u64| work >= PARALLEL_FLOPS * products as f64;
        let positions = |tensor| self.dims(tensor)[2..].iter().product();
        let (columns, threads) = match (name, inputs.as_slice()) {
            ("Conv2dXBackward", &[x, _, gradient]) => match parallel(self.dims(x)[0]) {
                true => (positions(gradient), self.threads),
                false => (positions(gradient), self.at_once(x)),
            },
            ("Conv2d", &[x, weight, ..]) if positions(weight) == 1 => {
                (positions(output), self.threads.min(self.dims(x)[0]))
            }
            ("Conv2d" | "Conv2dWeightBackward", _) => return 0,
            (name, _) if name.ends_with("BiasBackward") => return 0,
            (name, _) if name == "Matmul" || name.starts_with("Linear") => {
                let columns = self.rows_and_columns(output)[1];
                (columns, if parallel(1) { self.threads } else { 1 })
            }
            (name, _) if name.starts_with("Conv") => return self.threads,
            _ => return 0,
        };
        let vectors = columns.is_multiple_of(self.panel / 4) || columns > 16 * self.panel;
        u64::from(vectors) * threads
    }

    /// Samples whose gradients a transposed convolution lays out at once.
    fn at_once(&self, x: usize) -> u64 {
        let numbers = self.recording.tensors.shape(x).num_elements() as u64;
        match numbers < PARALLEL_NUMBERS {
            true => 1,
            false => self.threads.min(self.dims(x)[0]),
        }
    }

    /// The last two dimensions.
    fn rows_and_columns(&self, tensor: usize) -> [u64; 2] {
        let dims = self.recording.tensors.shape(tensor).as_slice();
        let last = |from_end| {
            dims.iter()
                .nth_back(from_end)
                .map_or(1, |&size| size as u64)
        };
        [last(1), last(0)]
    }

    /// All dimensions but the last.
    fn rows(&self, tensor: usize) -> u64 {
        let dims = self.recording.tensors.shape(tensor).as_slice();
        let rows = dims.iter().rev().skip(1);
        rows.product::<usize>() as u64
    }

    /// Bytes of the operands of a product of `rows x common` and `common x columns` that are laid out in panels: the right
    /// one where its columns fill no panel or it is strided, and the left one where it is strided and there are many columns.
    fn panels(&self, [rows, common, columns]: [u64; 3], [left, right]: [bool; 2]) -> u64 {
        let Some(output) = self.one.outputs().next() else {
            return 0;
        };
        let number = self.recording.tensors.dtype(output).size() as u64;
        let in_panels = columns.next_multiple_of(self.panel);
        let of_right = right || columns != in_panels;
        let of_right = of_right && columns <= 16 * self.panel;
        let of_left = left && columns > 2 * self.panel;
        let laid_out = u64::from(of_right) * in_panels + u64::from(of_left) * rows;
        laid_out * common.min(PANEL_DEPTH) * number
    }

    fn dims(&self, tensor: usize) -> [u64; 4] {
        let dims = self.recording.tensors.shape(tensor).as_slice();
        std::array::from_fn(|place| dims.get(place).map_or(1, |&size| size as u64))
    }

    /// The dimensions of the gradient of a convolution's weight before it is cut to the weight's: where a stride leaves the
    /// end of the input out, there are more.
    fn correlated(&self, output: usize) -> [u64; 4] {
        let mut out = self.dims(output);
        let operation = &self.one.kind.operation;
        if let OperationIr::Module(ModuleOperationIr::Conv2dWeightBackward(one)) = operation
            && one.options.groups == 1
        {
            let options = &one.options;
            for axis in 0..2 {
                let size = one.x.shape[axis + 2] + 2 * options.padding[axis].0;
                let span = options.stride[axis] * (one.output_grad.shape[axis + 2] - 1);
                let computed = size.saturating_sub(span + 1) / options.dilation[axis] + 1;
                out[axis + 2] = out[axis + 2].max(computed as u64);
            }
        }
        out
    }

    fn beyond(&self) -> u64 {
        let Some(output) = self.one.outputs().next() else {
            return 0;
        };
        let [own, whole] = [self.dims(output), self.correlated(output)]
            .map(|dims| dims.into_iter().product::<u64>().max(1));
        self.bytes(output) * whole / own - self.bytes(output)
    }

    /// Bytes of a convolution's copies; `exchanged` means that the first two dimensions of all its tensors are
    /// exchanged.
    fn convolution(&self, x: usize, weight: usize, mut out: [u64; 4], exchanged: bool) -> u64 {
        let [mut x_dims, mut w] = [x, weight].map(|one| self.dims(one));
        if exchanged {
            for dims in [&mut x_dims, &mut w, &mut out] {
                dims.swap(0, 1);
            }
        }
        let ([samples, channels, height, width], [outputs, _, rows, columns]) = (x_dims, w);
        let few = channels <= FEW_CHANNELS.0 && outputs <= FEW_CHANNELS.1;
        let point = [rows, columns] == [1, 1] && out[2..] == [height, width];
        if few || point {
            return 0;
        }
        let number = self.bytes(x) / x_dims.iter().product::<u64>().max(1);
        let positions = out[2] * out[3];
        let tiles = samples * positions.div_ceil(TILE);
        let window = channels * rows * columns;
        // The windows are copied once more when they are multiplied.
        let copies = if exchanged { 1 } else { 2 };
        let tile = (copies * window + outputs) * positions.min(TILE) * number;
        self.bytes(x) + self.bytes(weight) + self.threads.min(tiles) * tile
    }

    /// Bytes of the columns that a transposed convolution lays out for each sample.
    fn columns(&self, x: usize, weight: usize, gradient: usize) -> u64 {
        let [_, channels, ..] = self.dims(x);
        let [_, _, rows, columns] = self.dims(weight);
        let [_, _, height, width] = self.dims(gradient);
        let number = self.bytes(x) / self.dims(x).iter().product::<u64>().max(1);
        let position = channels * rows * columns * number;
        let positions = (COLUMNS_BYTES / position.max(1)).clamp(1, height * width);
        self.at_once(x) * position * positions
    }
}

/// Whether an operation is element-wise, and so can run in place of an input that it frees.
fn by_number(name: &str) -> bool {
    let names = "Add Sub Mul Div AddScalar SubScalar MulScalar DivScalar Exp Log Sqrt Tanh Recip Abs Neg Sigmoid Relu Gelu \
        ReluBackward GeluBackward SigmoidBackward PowfScalar MaskFill MaskWhere Scatter Clamp Powi Powf";
    names.split(' ').any(|one| one == name)
}
