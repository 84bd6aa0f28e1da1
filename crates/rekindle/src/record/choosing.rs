//! Chooses kernels before a program runs, in little memory, if the program
//! [allows](super::driver::ProgramOptions::dry_runs) dry runs: cubecl drops the launches of *all* threads meanwhile, so that another thread would read memory that nothing
//! wrote. Without dry runs, kernels are chosen by the operations that first need them, which measuring runs one at a
//! time with trimmed pools.
//!
//! If cubecl does not know the fastest kernel for an operation of some shape, alone or fused with neighbouring
//! operations, it runs all its candidates on separate buffers, and keeps the choice. A step that fills its budget has
//! no memory for these buffers. So a program is run *dry* before its first run: cubecl compiles its kernels and drops
//! their launches. A buffer takes memory only when a kernel runs on it, and only candidate kernels run
//! (`cubecl_runtime::dry_run`). Shapes, memory layouts, fusion and clean-ups of the pools are those of the later run;
//! values are not.
//!
//! A dry run takes memory for each *block* whose kernels are not known. A block is an operation for which kernels are
//! tried, with the operations after it up to the next such operation. It takes at most the inputs and outputs of the
//! block's operations and, for a convolution, matrices of the windows that its kernel slides over (im2col), of
//!
//! ```text
//! rows = batch x output positions,   columns = input channels of a group x kernel positions
//! ```
//!
//! numbers. If the budget has no room for all blocks, the program is run dry several times, each time further: blocks
//! whose kernels are already chosen take no memory. A budget without room for a single convolution is an error. The
//! list of known blocks is stored beside the kernels.

use std::{
    collections::HashSet,
    hash::{Hash, Hasher},
    sync::{LazyLock, Mutex, PoisonError},
};

use burn::tensor::DispatchTensor;
use rekindle_plan::Bytes;
use siphasher::sip::SipHasher13;

use super::{
    RecordError,
    cost::Costs,
    given::started,
    operation::{flops, without_values},
    operations::RecordedOperation,
    options::Planning,
    program::{Prepared, Run, Turn},
    recording::Recording,
};

/// Number of matrices of windows that exist at the same time, with columns rounded up to a power of two. Observed on
/// the stand-in for CUDA's driver: 2 with exact columns and 2 with rounded columns.
const MATRICES: f64 = 4.0;

/// Blocks whose kernels have been chosen.
static CHOSEN: LazyLock<Mutex<HashSet<u64>>> = LazyLock::new(|| {
    #[cfg(feature = "cubecl")]
    let kept = crate::cubecl::chosen();
    #[cfg(not(feature = "cubecl"))]
    let kept = HashSet::new();
    Mutex::new(kept)
});

/// Where a program waits for the device; each wait ends a fused group of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runs<'a> {
    /// After each operation, as in measurements.
    Singly,
    /// After these turns of the program, in order.
    Together(&'a [usize]),
}

impl Runs<'_> {
    fn waits_after(self, turn: usize) -> bool {
        match self {
            Self::Singly => true,
            Self::Together(turns) => turns.binary_search(&turn).is_ok(),
        }
    }
}

/// An operation for which kernels are tried, with those after it up to the next such operation.
struct Block {
    /// The turn of the program at which it begins.
    start: usize,
    /// Hashes that identify the block once its kernels are chosen, the same in every process: one of the block together
    /// with its neighbours, and one of the operation by itself, whatever comes before and after.
    hashes: [u64; 2],
    /// Upper bound on the memory for trying its kernels.
    bytes: Bytes,
    /// The part of `bytes` for matrices of windows. The rest the block also holds in a step, if nothing is freed in between.
    windows: Bytes,
}

/// A run of an operation in a program.
struct Ran<'a> {
    turn: usize,
    run: Run<'a>,
    /// Whether it reads a tensor that was fetched from the host, or one computed from such a tensor: it is dense, and may
    /// have another memory layout than elsewhere, so kernels are tried for it again.
    reads_dense: bool,
}

/// Chooses the kernels of a program within the budget, if it bounds pools and dry runs are allowed. `given` are the
/// tensors that exist before the first operation.
///
/// # Errors
///
/// [`RecordError::Choosing`] if the budget has no room for it.
pub(super) fn choose(
    (recording, program): (&Recording, &Prepared),
    costs: &Costs,
    given: impl Fn() -> Result<Vec<(usize, DispatchTensor)>, RecordError>,
    planning: &Planning,
    runs: Runs<'_>,
) -> Result<(), RecordError> {
    let Some(budget) = planning.budget.filter(|_| planning.bounds_pools()) else {
        return Ok(());
    };
    let new = new_blocks(recording, program, runs);
    if new.is_empty() {
        return Ok(());
    }
    let meter = &*planning.meter;
    let in_use = meter.trim();
    let room = budget - in_use;
    let dry = |until: usize| {
        let given = given()?;
        // Wait first, so that a dry run drops no queued work, such as the computation of the model's pending
        // statistics.
        let _ = planning.device.sync();
        run_dry((recording, program), costs, given, planning, (runs, until))
    };
    let too_large = |one: &&Block| one.windows > Bytes::ZERO && one.bytes > room;
    if let Some(block) = new.iter().find(too_large) {
        return Err(RecordError::Choosing {
            budget,
            needed: in_use + block.bytes,
        });
    }
    if !planning.options.program.dry_runs {
        return Ok(());
    }
    let mut taken = Bytes::ZERO;
    for block in &new {
        if taken > Bytes::ZERO && taken + block.bytes > room {
            dry(block.start)?;
            taken = Bytes::ZERO;
        }
        taken += block.bytes;
    }
    dry(program.program.operations().len())?;
    note_blocks(&new);
    recording.check_device(meter)
}

/// Records that all kernels of a program are chosen.
pub(super) fn note(recording: &Recording, program: &Prepared, runs: Runs<'_>) {
    note_blocks(&new_blocks(recording, program, runs));
}

fn note_blocks(blocks: &[Block]) {
    let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
    let hashes = blocks.iter().flat_map(|block| block.hashes);
    let new: Vec<u64> = hashes.filter(|hash| chosen.insert(*hash)).collect();
    #[cfg(feature = "cubecl")]
    crate::cubecl::note_chosen(&new);
    #[cfg(not(feature = "cubecl"))]
    drop(new);
}

/// Runs a program dry up to a turn. No random number is drawn.
fn run_dry(
    (recording, program): (&Recording, &Prepared),
    costs: &Costs,
    given: Vec<(usize, DispatchTensor)>,
    planning: &Planning,
    (runs, until): (Runs<'_>, usize),
) -> Result<(), RecordError> {
    #[cfg(feature = "cubecl")]
    let _dry = cubecl_runtime::dry_run::DryRun::new();
    let room = planning.new_room();
    // Every step but the first starts with the previous step's buffers in the pools, so clean-ups happen at other
    // points, and these determine what is fused.
    let whole = runs != Runs::Singly && until == program.program.operations().len();
    let steps = if whole { 2 } else { 1 };
    for _ in 0..steps {
        let mut started = started(recording, given.clone())?;
        let interpreter = started.as_mut();
        let mut held = Vec::new();
        for (place, (turn, ready)) in program.turns(recording).take(until).enumerate() {
            match turn {
                Turn::Run(run) => {
                    room.make(costs.taken_by(recording, run.number));
                    interpreter.run(without_values(run.operation()));
                    run.finish(interpreter);
                }
                Turn::Update(update) => update.skip(interpreter),
                Turn::Move(one) => {
                    if let Some(operation) = one.without_values() {
                        interpreter.run(operation);
                    }
                }
            }
            held.extend(ready.hand_out(interpreter));
            if runs.waits_after(place) {
                let _ = planning.device.sync();
            }
        }
        // Launch the operations that fusion has deferred now: after the dry run they would really run.
        let _ = planning.device.sync();
    }
    // Buffers without memory must not be counted, or reused by real work.
    planning.meter.trim();
    Ok(())
}

/// The blocks of a program whose kernels are not known, the first of each kind.
fn new_blocks(recording: &Recording, program: &Prepared, runs: Runs<'_>) -> Vec<Block> {
    let mut known = CHOSEN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    let mut dense: HashSet<usize> = HashSet::new();
    let mut all: Vec<Ran<'_>> = Vec::new();
    for (turn, (kind, _)) in program.turns(recording).enumerate() {
        match kind {
            Turn::Run(run) => {
                let reads_dense = run.recorded.inputs().any(|input| dense.contains(&input));
                for output in run.recorded.outputs() {
                    if reads_dense {
                        dense.insert(output);
                    } else {
                        dense.remove(&output);
                    }
                }
                all.push(Ran {
                    turn,
                    run,
                    reads_dense,
                });
            }
            Turn::Move(one) if !one.offload => drop(dense.insert(one.tensor)),
            Turn::Move(_) | Turn::Update(_) => {}
        }
    }
    let is_tried = |at: &usize| all[*at].run.recorded.kind.is_tried();
    let mut starts: Vec<usize> = (0..all.len()).filter(is_tried).collect();
    starts.push(all.len());
    let mut before = 0;
    let mut blocks = Vec::new();
    for bounds in starts.windows(2) {
        let start = bounds[0];
        let (neighbours, end) = match runs {
            Runs::Singly => (start, start + 1),
            Runs::Together(_) => (before, bounds[1]),
        };
        before = start + 1;
        let first = &all[start];
        let hashes = [hash(&all[neighbours..end], runs), hash_alone(first)];
        let [new, new_alone] = hashes.map(|hash| known.insert(hash));
        if new {
            let windows = if new_alone {
                windows(first.run.recorded)
            } else {
                Bytes::ZERO
            };
            blocks.push(Block {
                start: first.turn,
                hashes,
                bytes: bytes(recording, &all[start..end]) + windows,
                windows,
            });
        }
    }
    blocks
}

/// Bytes of the inputs and outputs of a block's operations.
fn bytes(recording: &Recording, block: &[Ran<'_>]) -> Bytes {
    let tensors = block.iter().flat_map(|one| one.run.recorded.tensors());
    let tensors: HashSet<usize> = tensors.collect();
    let values: u64 = tensors
        .iter()
        .map(|one| recording.tensors.value_bytes(*one))
        .sum();
    Bytes(values)
}

/// What matrices of windows take; nothing where the operation is no convolution. Convolutions are fused with nothing.
fn windows(operation: RecordedOperation<'_>) -> Bytes {
    let kind = operation.kind;
    let weight = kind.operation.inputs().nth(1);
    let Some(weight) = weight.filter(|_| kind.name.starts_with("Conv")) else {
        return Bytes::ZERO;
    };
    let channels = weight.shape.as_slice().first().map_or(1, |&one| one.max(1));
    let columns = (weight.shape.num_elements() / channels).max(1);
    // Each number of the matrix is multiplied and added once for each output channel.
    let numbers = flops(&kind.name, &kind.operation) / (2 * channels) as f64;
    let rounded = numbers * columns.next_power_of_two() as f64 / columns as f64;
    Bytes((MATRICES * rounded) as u64 * weight.dtype.size() as u64)
}

/// Hash of an operation's computation, and of whether it reads a tensor fetched from the host.
fn hash_alone(one: &Ran<'_>) -> u64 {
    let mut hasher = SipHasher13::new();
    one.reads_dense.hash(&mut hasher);
    one.run.recorded.kind.operation.hash(&mut hasher);
    hasher.finish()
}

/// Hash of a block: its operations in order, which of them read a fetched tensor, and where tensors are freed and the
/// device is waited for. Tensors are numbered in order of appearance.
fn hash(block: &[Ran<'_>], runs: Runs<'_>) -> u64 {
    let mut hasher = SipHasher13::new();
    let mut numbers: Vec<usize> = Vec::new();
    for one in block {
        let run = &one.run;
        (&run.recorded.kind.operation, one.reads_dense).hash(&mut hasher);
        runs.waits_after(one.turn).hash(&mut hasher);
        for tensor in run.recorded.tensors() {
            let place = numbers.iter().position(|one| *one == tensor);
            let place = place.unwrap_or_else(|| {
                numbers.push(tensor);
                numbers.len() - 1
            });
            (place, run.takes(tensor)).hash(&mut hasher);
        }
    }
    hasher.finish()
}

#[cfg(all(test, feature = "cubecl", feature = "flex"))]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    };

    use burn::{nn::LinearConfig, prelude::*};
    use cubecl_runtime::dry_run::dry_run;

    use super::*;
    use crate::{
        meter::{MemoryReading, Meter, PeakMemory},
        record::{
            bridge, options::ProgramOptions, places::Place, program::plain_order, update::Update,
        },
    };

    /// A GPU's pools that note whether they are trimmed during a dry run.
    #[derive(Default)]
    struct Pools {
        ran_dry: AtomicBool,
    }

    impl Meter for Pools {
        fn read(&self) -> MemoryReading {
            MemoryReading {
                reserved_bytes: Some(Bytes::ZERO),
                ..MemoryReading::default()
            }
        }

        fn start_interval(&self) {}

        fn lifetime_peak(&self) -> PeakMemory {
            PeakMemory::default()
        }

        fn trim(&self) -> Bytes {
            self.ran_dry.fetch_or(dry_run(), Relaxed);
            Bytes::ZERO
        }
    }

    /// Each width has kernels of its own.
    fn runs_dry(allowed: bool, width: usize) -> bool {
        let device = Device::flex().autodiff();
        let model = LinearConfig::new(width, width).init(&device);
        let batch = Tensor::<2>::ones([3, width], &device);
        let loss = |model: &nn::Linear, batch| model.forward(batch).mean();
        let pools = Arc::new(Pools::default());
        let options = ProgramOptions {
            dry_runs: allowed,
            ..ProgramOptions::default()
        };
        let recorded = crate::record(&model, &batch, loss).unwrap();
        let recorded = recorded.with_meter(pools.clone());
        let step = recorded.with_program_options(options).within("1GiB");
        let step = step.unwrap();
        step.run(&model, batch).unwrap();
        pools.ran_dry.load(Relaxed)
    }

    /// A dry run drops the kernels of every thread.
    #[test]
    fn nothing_runs_dry_unless_allowed() {
        assert!(!runs_dry(false, 11));
        assert!(runs_dry(true, 13));
    }

    /// What is fetched from the host may have another layout: kernels are tried again for what reads it.
    #[test]
    fn a_block_that_reads_a_fetched_tensor_is_another() {
        let device = Device::flex().autodiff();
        let model = LinearConfig::new(17, 17).init(&device);
        let batch = Tensor::<2>::ones([3, 17], &device);
        let loss = |model: &nn::Linear, batch| model.forward(batch).mean();
        let places = Place::of(&model);
        let (recording, ()) = bridge::take(&model, &places, &batch, loss, Update::After).unwrap();
        let graph = Costs::estimated(&recording, true).graph(&recording, Bytes::ZERO);
        let program = Prepared::new(&recording, plain_order(&graph).unwrap(), Vec::new());
        let Some((Turn::Run(run), _)) = program.turns(&recording).next() else {
            panic!("the first turn runs no operation");
        };
        let block = |reads_dense| Ran {
            turn: 0,
            run,
            reads_dense,
        };
        let known = hash(&[block(false)], Runs::Singly);
        assert_eq!(hash(&[block(false)], Runs::Singly), known);
        assert_ne!(hash(&[block(true)], Runs::Singly), known);
        assert_ne!(hash_alone(&block(true)), hash_alone(&block(false)));
    }
}
