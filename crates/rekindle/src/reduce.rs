//! Sums over ranks: the communication that data parallel training needs.
//!
//! Each *rank* is a process (or, in [`in_process`], a thread) with its own device, a copy of the model and a part of
//! each batch. Let w_r be the samples of rank r divided by the samples of all ranks. If the loss is a mean over
//! samples, loss and gradient of the whole batch are
//!
//! ```text
//! L = sum_r w_r L_r        dL/dp = sum_r w_r dL_r/dp
//! ```
//!
//! so the ranks only exchange one element-wise sum. A step that was recorded [with a
//! reducer](crate::record::Recorded::with_reducer) does this while its backward pass runs.
//!
//! ```no_run
//! use burn::{nn::{Linear, LinearConfig}, optim::SgdConfig, prelude::*};
//! use rekindle::reduce::{self, Reducer};
//!
//! #[global_allocator]
//! static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
//!
//! fn train(world: Reducer) -> Result<f32, Box<dyn std::error::Error + Send + Sync>> {
//!     let device = Device::flex().autodiff();
//!     let mut model = reduce::broadcast_parameters(&world, LinearConfig::new(4, 1).init(&device))?;
//!     let samples = reduce::part(6, world.rank(), world.ranks());
//!     let batch = Tensor::<2>::ones([6, 4], &device).slice([samples]);
//!     let loss = |layer: &Linear, x: Tensor<2>| layer.forward(x).square().mean();
//!     let mut optimizer = SgdConfig::new().init();
//!     let step = rekindle::record(&model, &batch, loss)?.with_reducer(world).plain()?;
//!     let output = step.run(&model, batch)?;
//!     model = optimizer.step(0.1, model, output.gradients);
//! #   let _ = model;
//!     Ok(output.loss.into_scalar())
//! }
//!
//! // Two ranks as threads; `rekindle::mpi::world()?` has one in each process that `mpirun` starts.
//! let ranks = reduce::in_process(2).into_iter();
//! let ranks: Vec<_> = ranks.map(|rank| std::thread::spawn(|| train(rank))).collect();
//! let losses: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect();
//! assert_eq!(losses[0], losses[1]);
//! ```
//!
//! All ranks call the same functions in the same order, as in MPI. [`Reducer`] and its networks do not depend on burn.

mod in_process;
#[cfg(feature = "mpi")]
pub mod mpi;
pub(crate) mod reducer;
pub(crate) mod rehearsal;
mod sending;
mod sharded;
pub(crate) mod shards;
pub(crate) mod synchronised;

pub use in_process::in_process;
pub(crate) use reducer::agree;
pub use reducer::{Answer, Collective, Pending, ReduceError, Reducer, part};
pub(crate) use sending::Sending;
pub use sending::broadcast_parameters;
pub use sharded::Sharded;
pub use synchronised::synchronised_batch_norm;
