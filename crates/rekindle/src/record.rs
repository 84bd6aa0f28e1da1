//! Records any model's training step once, without a list of layers, plans it, and runs it within a memory budget.
//!
//! ```
//! use burn::{
//!     nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig},
//!     optim::AdamConfig,
//!     prelude::*,
//!     tensor::{Distribution, activation::gelu},
//! };
//!
//! #[global_allocator]
//! static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
//!
//! #[derive(Module, Debug)]
//! struct Model {
//!     layers: Vec<Linear>,
//! }
//!
//! impl Model {
//!     fn forward(&self, input: Tensor<2>) -> Tensor<2> {
//!         self.layers.iter().fold(input, |x, layer| x.clone() + gelu(layer.forward(x)))
//!     }
//! }
//!
//! let device = Device::flex().autodiff();
//! let mut model = Model { layers: (0..16).map(|_| LinearConfig::new(32, 32).init(&device)).collect() };
//! let batch = || {
//!     let inputs = Tensor::<2>::random([256, 32], Distribution::Default, &device);
//!     let targets = Tensor::<1, Int>::zeros([256], &device);
//!     (inputs, targets)
//! };
//! let mut optimizer = AdamConfig::new().init();
//!
//! let step = rekindle::record(&model, &batch(), |model: &Model, (inputs, targets)| {
//!     let output = model.forward(inputs);
//!     CrossEntropyLossConfig::new().init(&output.device()).forward(output, targets)
//! })?
//! .with_optimizer(&optimizer)
//! .within("64MiB")?;
//! for _ in 0..3 {
//!     let output = step.run(&model, batch())?;
//!     model = optimizer.step(1e-3, model, output.gradients);
//! }
//! # Ok::<(), rekindle::record::RecordError>(())
//! ```
//!
//! # How it works
//!
//! burn's recording device, under burn's own autodiff, records the whole step as a list of operations with shapes:
//! forward pass, loss and burn's own backward pass. Nothing is computed and nothing is allocated. A program is a list
//! of those operations, each listed once per run: **a recompute is an operation that is listed again**. burn's
//! interpreter runs the program on the model's device. A tensor is freed at its last use, and an operation that is the
//! last use of its input can work in place.
//!
//! # Guarantees
//!
//! - Loss, auxiliary output, gradients and running statistics are those of the plain burn loop; on the CPU backend bit
//!   for bit. Random numbers are drawn once, in the plain loop's order, and kept as long as they are needed: the same
//!   [`Device::seed`](burn::tensor::Device::seed) gives the same numbers. (burn initialises parameters at their first
//!   use: if the seed is set before that, the parameters consume its first numbers.)
//! - Running statistics have their new values when the step returns. burn's own loop keeps the last update pending until the
//!   next forward pass or `valid()`, and a module visitor does not see it before that.
//! - [`Step::run`] stays within the budget, which counts all memory of the process; see [`Recorded::within`].
//! - Every step is compared with its recording before it runs, by default. A step that computes something else, and a batch
//!   with other shapes, gets its own recording and plan, for which only what is new is measured.
//! - A batch that is smaller than one before runs by the plan of that one, until what this loses exceeds the time of an own
//!   plan; its predicted peak is an upper bound until then.
//!
//! # The step
//!
//! - **A batch** is a tensor, or a tuple, option, vector or array of batches, or a struct of your own with
//!   [`impl_tensor_tree!`](crate::impl_tensor_tree). The auxiliary output may be the same.
//! - **The closure** computes the loss from the model and the batch. It is called when the step is recorded and
//!   when it is planned, and once or twice in each step that is [compared](Comparison): do not count its calls.
//! - **Rust numbers are constants** of a recording. A step in which only numbers differ, such as the weight of a loss, is
//!   recorded again, in a few milliseconds, and keeps its plan.
//! - **A tensor of the model** is identified by its place in the module. A frozen copy that has the [`ParamId`]s of the
//!   trained module, such as the target network of DQN, keeps its own values. Clones of a layer are one tensor while they
//!   are one in burn's graph; an optimizer updates only the first of them, and [`retie`](crate::retie) ties them again.
//!   burn creates parameters at their first use: clone a layer after that, or the clones are frozen together.
//! - **A module that is used twice** in a step and contains a batch norm needs [`reused`](crate::reused).
//!
//! # Limitations
//!
//! Nothing is computed while a step is recorded. A step that reads a tensor's value, takes tensors from outside, calls
//! `backward`, seeds the generator of the recorded tensors, or uses quantized tensors or custom operations fails with an
//! error that says what to change. Seeding another device's generator inside the step is not noticed: the seed takes
//! effect when the step is compared, before all its draws. For models that must read values, use
//! [`Sequential`](crate::Sequential).
//!
//! [`ParamId`]: burn::module::ParamId
//!
//! # Map
//!
//! | file | what it owns |
//! |---|---|
//! | `bridge.rs`, `bridge/` | all code that depends on burn's conversions: recording, and burn's interpreter |
//! | `recording.rs` | `Recording`: the step as a list of operations |
//! | `operations.rs`, `tensors.rs` | its operations and tensors, packed: common parts of equal ones are stored once |
//! | `places.rs` | the tensors of a module, by place |
//! | `operation.rs` | names, work from shapes, which operations draw random numbers |
//! | `cost.rs`, `cost/` | the cost of each operation |
//! | `layout.rs` | which operations have the same cost |
//! | `profile.rs` | [`StepProfile`]: a measured step without its recording, for planning elsewhere |
//! | `extra.rs` | what a plan does beyond the plain step, operation by operation |
//! | `program.rs` | a program, ready to run |
//! | `host.rs` | tensors offloaded to host memory, and [`measured_link`] |
//! | `hexadecimal.rs` | 64-bit numbers in JSON |
//! | `given.rs`, `output.rs` | the step's inputs and outputs |
//! | `staged.rs` | the plan in terms of the model's stages, and the tensors that each pass makes and frees |
//! | `builder.rs`, `options.rs` | [`Recorded`]: options of a recorded step, and which plan is wanted |
//! | `measured.rs` | a recording that is measured |
//! | `planned.rs` | a plan for it within a budget, ready to run |
//! | `step.rs` | [`Step`]: one training step |
//! | `step/run.rs` | runs a program: an operation that is listed twice is recomputed here |
//! | `step/cache.rs` | plans that are kept, and changed steps |
//! | `driver.rs` | what only the program `rekindle` asks of a step |
//! | `comparison.rs` | [`Comparison`]: how often a step is compared with its recording |
//! | `autodiff_time.rs` | what burn's own loop takes beyond the operations of a step |
//! | `choosing.rs` | kernels of a GPU plan, chosen before its first run |
//! | `room.rs` | keeps what a GPU's pools reserve within the budget |
//! | `finite.rs` | values that are not finite |
//! | `error.rs` | [`RecordError`]: the error texts |
//! | `update.rs`, `update_costs.rs` | [`Update`]: when parameters are updated, and what that takes |
//! | `optimizer_state.rs` | who keeps the optimizer's state, if ranks share a step |
//! | `ways.rs` | the ways that options allow, tried in order, and the rule by which one is chosen |
//! | `leaf.rs` | a parameter as a leaf of burn's graph; nodes of that graph that are freed |
//! | `lent.rs` | parameters that the model lends to a step which updates them in the backward pass (at `Turn::Update` in `step/run.rs`) |
//! | `optimizer.rs` | [`Optimizer`], and what its update takes, measured |
//! | `rank.rs` | tensors whose number of dimensions is known when the program runs |
//! | `ranks.rs`, `agreement.rs` | the [ranks](crate::reduce) that share a step, and what they agree on before its first run |
//! | `buckets.rs` | which gradients are summed together |
//! | `exchange.rs`, `exchange/` | gradients summed over ranks while the backward pass runs |
//! | `exchange_cost.rs` | the cost of the exchange, measured before the first step |
//! | `plan_summary.rs` | a plan in numbers, as it is shown and written |
//! | `kept.rs` | [`run_recorded`]: records the step at its first run |
//! | `estimate.rs` | [`estimate`]: plans a step without a device |
//! | `kernels.rs` | memory that kernels take besides tensors, by operation |

mod agreement;
mod autodiff_time;
mod bridge;
mod buckets;
mod builder;
mod choosing;
mod comparison;
mod cost;
#[doc(hidden)]
pub mod driver;
mod error;
mod estimate;
mod exchange;
mod exchange_cost;
mod extra;
mod finite;
mod given;
mod hexadecimal;
mod host;
mod kept;
mod kernels;
mod layout;
mod leaf;
mod lent;
mod measured;
mod operation;
mod operations;
mod optimizer;
mod optimizer_state;
mod options;
mod output;
mod places;
mod plan_summary;
mod planned;
mod profile;
mod program;
mod rank;
mod ranks;
mod recording;
mod room;
mod staged;
mod step;
mod tensors;
mod update;
mod update_costs;
mod ways;

pub(crate) use bridge::{marking, merge_recorded, without_graph};
pub use builder::{Recorded, record};
pub use comparison::Comparison;
pub use error::RecordError;
pub use estimate::{Assumed, Estimate, estimate};
pub use exchange::{ExchangeReading, Exchanges, TimedExchange};
pub use host::measured_link;
pub use kept::{forget, run_recorded};
pub use kernels::Kernels;
pub(crate) use leaf::Leaf;
pub use optimizer::Optimizer;
pub use optimizer_state::{OptimizerState, ShardedBecause, StatePlan};
pub use output::Output;
pub(crate) use places::{Place, apart, put_statistics, tensors};
pub use plan_summary::{Offload, PlanSummary, StepExchange};
pub use profile::StepProfile;
pub use rekindle_plan::graph::{Exchanged, Link, Rate, Ring};
pub use step::Step;
pub use update::{InBackwardBecause, Update};
