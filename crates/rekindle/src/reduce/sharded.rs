//! An optimizer whose state is divided among ranks: [`Sharded`].

use burn::{
    module::{Module, ParamId},
    optim::GradientsParams,
    tensor::Device,
};

use super::{ReduceError, Reducer, shards::Shards};
use crate::record::Optimizer;

/// An optimizer of which each of n ranks keeps about 1/n of the state, in whole parameters (ZeRO stage 1,
/// Rajbhandari et al. 2020, arXiv 1910.02054). The resulting parameters are bit for bit those of an optimizer whose
/// whole state is on every rank.
///
/// Instead of an optimizer `o`, pass `Sharded::new(o, &model, world)` to
/// [`with_optimizer`](crate::record::Recorded::with_optimizer) and update the model with it; plans count this rank's
/// part of the state. After the usual sum of the gradients, a step sends each trained parameter once to all ranks. In the
/// [example of ranks](crate::reduce), these lines change:
///
/// ```text
/// let mut optimizer = Sharded::new(AdamConfig::new().init(), &model, world.clone());
/// let step = rekindle::record(&model, &batch, loss)?.with_optimizer(&optimizer).with_reducer(world).plain()?;
/// model = optimizer.step(0.1, model, output.gradients)?;
/// ```
///
/// The whole state, for example for a snapshot, must be collected from all ranks: [`inner`](Self::inner) has only this
/// rank's part.
pub struct Sharded<O> {
    inner: O,
    shards: Shards,
}

impl<O: Optimizer> Sharded<O> {
    /// Divides the trained parameters of `model` among the ranks. `optimizer` must have no state yet.
    pub fn new<M: Module>(optimizer: O, model: &M, reducer: Reducer) -> Self {
        Self {
            inner: optimizer,
            shards: Shards::of(model, reducer),
        }
    }

    /// Updates the parameters of `module` that have a gradient, each on its own rank, which sends the result to all
    /// others. All ranks must call it together, with the whole model.
    ///
    /// # Errors
    ///
    /// If ranks do not answer, or a rank cannot read its updated parameters. The model is then lost; resume training
    /// from a snapshot.
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

    /// The wrapped optimizer, with this rank's part of the state.
    #[must_use]
    pub fn inner(&self) -> &O {
        &self.inner
    }
}

/// Updates only this rank's parameters; [`Step::run_updating`](crate::record::Step::run_updating) then exchanges them.
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

    fn has_state(&self, parameter: ParamId, device: &Device) -> bool {
        self.inner.has_state(parameter, device)
    }

    fn shards(&self) -> Option<&Shards> {
        Some(&self.shards)
    }
}
