//! Ranks that `mpirun` starts, one process each, which exchange values by MPI. Requires the feature `mpi`, which builds
//! against the system's MPI.
//!
//! One dedicated thread initialises MPI, makes every MPI call, and finalises it, so `MPI_THREAD_FUNNELED` is enough.
//! Operations are sent to that thread and block it, not the training. Values pass through host memory. MPI makes
//! continuous progress, because that thread stays inside its call; when training on the CPU, this occupies a core.
//!
//! A rank that ends early, by an error, a panic or a signal, has either not finalised MPI or exits with a non-zero
//! status; `mpirun` then ends all others.
//!
//! ```no_run
//! let world = rekindle::mpi::world()?;
//! println!("rank {} of {}", world.rank(), world.ranks());
//! # Ok::<(), rekindle::reduce::ReduceError>(())
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
};

use ::mpi::{
    Threading,
    collective::SystemOperation,
    environment::initialize_with_threading,
    topology::SimpleCommunicator,
    traits::{Communicator, CommunicatorCollectives, Root},
};

use super::{Collective, ReduceError, Reducer};

/// Maximum number of elements per call: MPI counts in 32 bits.
const AT_ONCE: usize = 1 << 28;

/// The thread that makes MPI calls.
struct Own {
    /// Operations that have started and not finished.
    under_way: Arc<AtomicUsize>,
    jobs: Option<Sender<Collective>>,
    thread: Option<JoinHandle<()>>,
}

/// Initialises MPI for all ranks that `mpirun` started, and returns this process's rank; a process started without
/// `mpirun` is the only rank. Can be called once per process. MPI is finalised when the last clone is dropped.
///
/// # Errors
///
/// If MPI was initialised before, or no thread can be started.
pub fn world() -> Result<Reducer, ReduceError> {
    let (jobs, asked) = channel();
    let (ready, started) = channel();
    let under_way = Arc::new(AtomicUsize::new(0));
    let done = under_way.clone();
    let thread = thread::Builder::new().spawn(move || {
        let Some((universe, _)) = initialize_with_threading(Threading::Funneled) else {
            return;
        };
        let world = universe.world();
        let _ = ready.send((world.rank() as usize, world.size() as usize));
        serve(&world, &asked, &done);
        // Dropping the universe finalises MPI.
    });
    let thread = thread.map_err(|error| ReduceError::Failed(error.to_string()))?;
    let twice = "MPI was initialised before in this process";
    let (rank, ranks) = started
        .recv()
        .map_err(|_| ReduceError::Failed(twice.into()))?;
    let own = Own {
        under_way,
        jobs: Some(jobs),
        thread: Some(thread),
    };
    Ok(Reducer::new(rank, ranks, move |operation| {
        own.begin(operation);
    }))
}

impl Own {
    fn begin(&self, operation: Collective) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        // If the thread has ended, the answer's sender is dropped, which `wait` reports.
        let jobs = self.jobs.as_ref();
        let _ = jobs.map(|jobs| jobs.send(operation));
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        drop(self.jobs.take());
        // MPI cannot be finalised while an operation waits for ranks that never join it: the process ends without
        // finalising, and `mpirun` ends the other ranks.
        let stuck = self.under_way.load(Ordering::SeqCst) > 0 || thread::panicking();
        if let Some(thread) = self.thread.take().filter(|_| !stuck) {
            let _ = thread.join();
        }
    }
}

/// Serves requests until all senders are dropped.
fn serve(world: &SimpleCommunicator, asked: &Receiver<Collective>, under_way: &AtomicUsize) {
    let done = || under_way.fetch_sub(1, Ordering::SeqCst);
    for job in asked {
        match job {
            Collective::AllReduce(values, answer) => {
                let sums = reduce(world, &values);
                drop(values);
                done();
                answer.send(Ok(sums));
            }
            Collective::AllGather(bytes, answer) => {
                let all = gather(world, bytes);
                done();
                answer.send(Ok(all));
            }
            Collective::Broadcast(root, bytes, answer) => {
                let sent = broadcast(world, root, bytes);
                done();
                answer.send(Ok(sent));
            }
        }
    }
}

fn reduce(world: &SimpleCommunicator, values: &[f32]) -> Vec<f32> {
    let mut sums = vec![0.0; values.len()];
    for (own, sums) in values.chunks(AT_ONCE).zip(sums.chunks_mut(AT_ONCE)) {
        world.all_reduce_into(own, sums, SystemOperation::sum());
    }
    sums
}

/// Gathered values are short: padded to the longest of them, they fit into one call.
fn gather(world: &SimpleCommunicator, mut bytes: Vec<u8>) -> Vec<Vec<u8>> {
    let mut lengths = vec![0_u64; world.size() as usize];
    world.all_gather_into(&(bytes.len() as u64), &mut lengths);
    // Open MPI refuses to gather nothing.
    let longest = lengths.iter().fold(1_u64, |most, &length| most.max(length)) as usize;
    bytes.resize(longest, 0);
    let mut all = vec![0_u8; longest * lengths.len()];
    world.all_gather_into(&bytes, &mut all);
    let parts = all.chunks(longest).zip(lengths);
    parts
        .map(|(part, length)| part[..length as usize].to_vec())
        .collect()
}

fn broadcast(world: &SimpleCommunicator, root: usize, mut bytes: Vec<u8>) -> Vec<u8> {
    let root = world.process_at_rank(root as i32);
    let mut length = bytes.len() as u64;
    root.broadcast_into(&mut length);
    bytes.resize(length as usize, 0);
    for part in bytes.chunks_mut(AT_ONCE) {
        root.broadcast_into(part);
    }
    bytes
}
