//! What a GPU's memory holds while kernels are chosen.
//!
//! Where cubecl does not know its fastest kernel for an operation of some shape, it runs all that it has. Those for
//! convolutions lay the windows that the kernel slides over out as a matrix, of
//!
//! ```text
//! rows = batch x output positions,   columns = input channels of a group x kernel positions
//! ```
//!
//! numbers (im2col), and the pools keep what each has freed. It can be many times what the step takes, and there is no way
//! to bound it: so a budget that has no room for it is refused, as long as the kernels of a recording are not known to be
//! chosen. Products of matrices and reductions take little more than their outputs.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{LazyLock, Mutex, PoisonError},
};

use rekindle_plan::{Bytes, graph::Graph};

use super::{operation::flops, recording::Recording};

/// Matrices of windows that are there at once, their columns rounded up to a power of two. Seen on the stand-in for CUDA's
/// driver: 2 with columns as they are and 2 with columns rounded up.
const MATRICES: f64 = 4.0;

/// Recordings whose kernels are chosen.
static CHOSEN: LazyLock<Mutex<HashSet<u64>>> = LazyLock::new(|| {
    #[cfg(feature = "cubecl")]
    let kept = crate::cubecl::chosen();
    #[cfg(not(feature = "cubecl"))]
    let kept = HashSet::new();
    Mutex::new(kept)
});

/// Counts in the graph what choosing kernels takes for a recording, and says whether there is anything to choose.
pub(super) fn count(recording: &Recording, graph: &mut Graph) -> bool {
    let chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    if chosen.contains(&hash(recording)) {
        return false;
    }
    let mut any = false;
    let operations = recording.operations.iter();
    for (one, planned) in operations.zip(&mut graph.operations) {
        let operation = &one.kind.operation;
        let weight = operation.inputs().nth(1);
        let Some(weight) = weight.filter(|_| one.kind.name.starts_with("Conv")) else {
            continue;
        };
        let channels = weight.shape.as_slice().first().map_or(1, |&one| one.max(1));
        let columns = (weight.shape.num_elements() / channels).max(1);
        // Each number of the matrix is multiplied and added once for each channel that comes out.
        let numbers = flops(&one.kind.name, operation) / (2 * channels) as f64;
        let rounded = numbers * columns.next_power_of_two() as f64 / columns as f64;
        planned.temp_bytes += Bytes((MATRICES * rounded) as u64 * weight.dtype.size() as u64);
        any = true;
    }
    any
}

/// Notes that all operations of a recording have run.
pub(super) fn note(recording: &Recording) {
    let hash = hash(recording);
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    if chosen.insert(hash) {
        #[cfg(feature = "cubecl")]
        crate::cubecl::note_chosen(hash);
    }
}

/// The same whatever becomes of the operations' outputs, and in every process.
fn hash(recording: &Recording) -> u64 {
    let mut hasher = DefaultHasher::new();
    recording.operations.hash(&mut hasher);
    hasher.finish()
}
