//! Properties of an operation that are known before it runs: its name, its work from its shapes, and whether it draws.

use std::{
    fmt::{self, Write},
    hash::{Hash, Hasher},
};

use burn_ir::{
    BaseOperationIr, CreationOpIr, FloatOperationIr, FullOpIr, NumericOperationIr, OperationIr,
    ScalarIr, TensorIr,
};
use rekindle_plan::Seconds;

/// burn's name of an operation: `Matmul`, `Conv2dWeightBackward`.
pub(crate) fn name_of(operation: &OperationIr) -> String {
    let mut start = Start(String::new());
    // Only the beginning of the text is needed: the writer stops there with an error.
    let _ = write!(start, "{operation:?}");
    let words = start.0.split(|c: char| !c.is_alphanumeric());
    let kinds = [
        "F64", "F32", "Flex32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8",
    ];
    let mut words = words.filter(|word| !word.is_empty() && !kinds.contains(word));
    let family = words.next().unwrap_or_default();
    match words.next() {
        Some(name)
            if name.starts_with(char::is_uppercase) && !name.ends_with("Ir") && name != "Bool" =>
        {
            name.to_owned()
        }
        _ => family.to_owned(),
    }
}

/// The first letters of a text.
struct Start(String);

impl Write for Start {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(text);
        if self.0.len() > 64 {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}

/// The hash of an operation, with the parameters of a distribution, which burn leaves out.
pub(super) fn hash_with(operation: &OperationIr, mut hasher: impl Hasher) -> u64 {
    operation.hash(&mut hasher);
    if let OperationIr::Float(_, FloatOperationIr::Random(random))
    | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(random)) = operation
    {
        format!("{:?}", random.distribution).hash(&mut hasher);
    }
    hasher.finish()
}

/// Whether the operation draws from the random number generator: another run would draw other numbers.
pub(crate) fn draws(operation: &OperationIr) -> bool {
    matches!(
        operation,
        OperationIr::Float(_, FloatOperationIr::Random(_))
            | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(_))
    )
}

/// Whether its result is which numbers are the largest, or in which order they stand: made again from numbers that differ in
/// the last digit, as they may on a GPU, it could be another, and the step would take other rows than before.
pub(crate) fn chooses(name: &str) -> bool {
    let names = "ArgMax ArgMin ArgSort ArgTopK MaxDimWithIndices MinDimWithIndices SortWithIndices TopKWithIndices";
    names.split(' ').any(|one| one == name)
}

/// The operation, or instead of one that draws, one that fills: measuring must not advance the generator.
pub(crate) fn without_draw(operation: OperationIr) -> OperationIr {
    let full = |out: TensorIr, value: ScalarIr| NumericOperationIr::Full(FullOpIr { out, value });
    match operation {
        OperationIr::Float(dtype, FloatOperationIr::Random(random)) => {
            OperationIr::NumericFloat(dtype, full(random.out, ScalarIr::Float(1.0)))
        }
        OperationIr::NumericInt(dtype, NumericOperationIr::IntRandom(random)) => {
            OperationIr::NumericInt(dtype, full(random.out, ScalarIr::Int(0)))
        }
        other => other,
    }
}

/// The operation, or instead of one that draws, one that makes a tensor [without values](empty).
pub(crate) fn without_values(operation: OperationIr) -> OperationIr {
    match operation {
        OperationIr::Float(_, FloatOperationIr::Random(random)) => empty(random.out),
        OperationIr::NumericInt(_, NumericOperationIr::IntRandom(random)) => empty(random.out),
        other => other,
    }
}

/// Makes a tensor without values. Like a draw or a copy from the host, it is never fused.
pub(crate) fn empty(out: TensorIr) -> OperationIr {
    let dtype = out.dtype;
    let operation = BaseOperationIr::Empty(CreationOpIr { out });
    if dtype.is_bool() {
        OperationIr::BaseBool(operation)
    } else if dtype.is_int() || dtype.is_uint() {
        OperationIr::BaseInt(operation)
    } else {
        OperationIr::BaseFloat(operation)
    }
}

/// Whether its output may share its input's storage.
pub(crate) fn may_be_view(name: &str) -> bool {
    matches!(
        name,
        "Reshape" | "SwapDims" | "Permute" | "Expand" | "Slice" | "Unfold"
    )
}

/// Whether its output may have exchanged dimensions in memory. burn computes the gradient of a convolution's weights as
/// a convolution and finally exchanges its first two dimensions.
pub(crate) fn exchanges_dimensions(name: &str) -> bool {
    matches!(name, "SwapDims" | "Permute")
        || (name.starts_with("Conv") && name.ends_with("WeightBackward"))
}

/// Speed of a nominal machine: floating-point operations per second, and bytes read or written per second. Their ratio
/// is typical of a processor with vector units; only ratios of the resulting seconds are meaningful.
const NOMINAL_FLOPS: f64 = 60e9;
const NOMINAL_BYTES: f64 = 10e9;
/// Minimum seconds of an operation on it.
const NOMINAL_CALL_S: f64 = 1e-6;

/// Floating-point operations from shapes alone; multiplications and additions each count.
pub(crate) fn flops(name: &str, operation: &OperationIr) -> f64 {
    let inputs: Vec<&TensorIr> = operation.inputs().collect();
    let Some(out) = operation.outputs().next() else {
        return 0.0;
    };
    let count = |tensor: &TensorIr| tensor.shape.num_elements() as f64;
    let size = |size: Option<&usize>| size.map_or(1.0, |&size| size as f64);
    let last = |tensor: &TensorIr| size(tensor.shape.as_slice().last());
    let first = |tensor: &TensorIr| size(tensor.shape.as_slice().first()).max(1.0);
    match (name, inputs.as_slice()) {
        ("Matmul" | "Linear", [left, ..]) => 2.0 * count(out) * last(left),
        ("LinearXBackward", [_, gradient]) => 2.0 * count(out) * last(gradient),
        ("LinearWeightBackward", [x, _]) => 2.0 * count(out) * count(x) / last(x).max(1.0),
        ("Attention", [query, key, ..]) => 4.0 * count(query) * count(key) / last(key).max(1.0),
        (_, [_, weight, gradient])
            if name.ends_with("XBackward") || name.ends_with("WeightBackward") =>
        {
            2.0 * count(gradient) * count(weight) / first(weight)
        }
        (_, [x, weight, ..]) if name.starts_with("ConvTranspose") => {
            2.0 * count(x) * count(weight) / first(weight)
        }
        (_, [_, weight, ..]) if name.starts_with("Conv") && !name.ends_with("Backward") => {
            2.0 * count(out) * count(weight) / first(weight)
        }
        _ => inputs
            .iter()
            .map(|input| count(input))
            .fold(count(out), f64::max),
    }
}

/// Seconds on the nominal machine.
pub(crate) fn nominal_seconds(name: &str, operation: &OperationIr) -> Seconds {
    let bytes: usize = operation
        .inputs()
        .chain(operation.outputs())
        .map(|tensor| tensor.shape.num_elements() * tensor.dtype.size())
        .sum();
    let moved = if may_be_view(name) {
        0.0
    } else {
        bytes as f64 / NOMINAL_BYTES
    };
    Seconds(NOMINAL_CALL_S + moved.max(flops(name, operation) / NOMINAL_FLOPS))
}
