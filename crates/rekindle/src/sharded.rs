//! An optimizer whose state ranks share out: [`Sharded`].

use burn::{module::Module, optim::GradientsParams};

use crate::{
    record::Optimizer,
    reduce::{ReduceError, Reducer, Shards},
};

/// An optimizer of which each rank keeps a part of the state: of n ranks about one n-th, in [whole parameters](Shards) (ZeRO
/// stage 1, Rajbhandari et al. 2020, arXiv 1910.02054). Parameters and their bits are those of an optimizer that every rank has whole.
///
/// In place of an optimizer `o`, `Sharded::new(o, &model, world)` is given to
/// [`with_optimizer`](crate::record::Recorded::with_optimizer) and updates the model; plans count its part of the state. A
/// step sends the bytes of each trained parameter once, to all ranks, after gradients were summed as ever.
///
/// ```
/// use burn::{nn::{Linear, LinearConfig}, optim::AdamConfig, prelude::*};
/// use rekindle::{Sharded, reduce::{self, Reducer}};
///
/// # #[global_allocator]
/// # static ALLOCATOR: rekindle_alloc::CountingAllocator = rekindle_alloc::CountingAllocator;
/// fn train(world: impl Reducer + Clone + 'static) -> Result<f32, Box<dyn std::error::Error + Send + Sync>> {
///     let device = Device::flex().autodiff();
///     let mut model = reduce::broadcast_parameters(&world, LinearConfig::new(4, 1).init(&device))?;
///     let batch = Tensor::<2>::ones([6, 4], &device);
///     let loss = |layer: &Linear, x: Tensor<2>| layer.forward(x).square().mean();
///     let mut optimizer = Sharded::new(AdamConfig::new().init(), &model, world.clone());
///     let step = rekindle::record(&model, &batch, loss)?
///         .with_optimizer(&optimizer)
///         .with_reducer(world)
///         .plain()?;
///     let output = step.run(&model, batch)?;
///     model = optimizer.step(0.1, model, output.gradients)?;
///     Ok(model.weight.val().sum().into_scalar())
/// }
///
/// let ranks = reduce::in_process(2, None).into_iter();
/// let ranks: Vec<_> = ranks.map(|rank| std::thread::spawn(|| train(rank))).collect();
/// let sums: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap().unwrap()).collect();
/// assert_eq!(sums[0], sums[1]);
/// ```
///
/// Whatever needs the whole state, such as a snapshot, gets it from all ranks: [`inner`](Self::inner) has this rank's.
pub struct Sharded<O> {
    inner: O,
    shards: Shards,
}

impl<O: Optimizer> Sharded<O> {
    /// Shares out what `optimizer` keeps of the parameters of `model` that train. It has no state yet.
    pub fn new<M: Module>(optimizer: O, model: &M, reducer: impl Reducer + 'static) -> Self {
        Self {
            inner: optimizer,
            shards: Shards::of(model, reducer),
        }
    }

    /// Updates the parameters of `module` that have a gradient, each on its rank, which sends it to all others. All ranks call
    /// it together, with the whole model.
    ///
    /// # Errors
    ///
    /// If ranks do not answer, or one cannot read what it has updated: the model is lost, and training goes on from a
    /// snapshot.
    pub fn step<M: Module>(
        &mut self,
        rate: f64,
        module: M,
        gradients: GradientsParams,
    ) -> Result<M, ReduceError> {
        let module = Optimizer::step(self, rate, module, gradients);
        let (module, shared) = self.shards.share(module);
        shared.map(|_| module)
    }

    /// What holds this rank's part of the state.
    #[must_use]
    pub fn inner(&self) -> &O {
        &self.inner
    }
}

/// Updates this rank's parameters alone: [`Step::run_updating`](crate::record::Step::run_updating) has ranks share them.
impl<O: Optimizer> Optimizer for Sharded<O> {
    fn for_trial(&self) -> Self {
        Self {
            inner: self.inner.for_trial(),
            shards: self.shards.clone(),
        }
    }

    fn step<M: Module>(&mut self, rate: f64, module: M, mut gradients: GradientsParams) -> M {
        self.shards.drop_others(&module, &mut gradients);
        self.inner.step(rate, module, gradients)
    }

    fn shards(&self) -> Option<&Shards> {
        Some(&self.shards)
    }
}
