//! Running statistics: values from before a step, so that a step can be abandoned, and modules that move theirs more than
//! once in a step. Before the update, a forward pass changes nothing else in a model.
//!
//! Memory: while a step runs, statistics are held twice.

use std::collections::HashMap;

use burn::{module::Module, tensor::DispatchTensor};
use rekindle_plan::Bytes;

use crate::record::{Place, apart, merge_recorded, put_statistics, tensors};

/// Overhead of a held tensor, measured on the CPU backend.
const HELD_BYTES: u64 = 256;

/// Prepares a module with batch norms for another use in the same step, for example the discriminator of a GAN for
/// generated images. burn's recording device requires this; in a plain loop it does nothing. Running statistics are
/// updated by each use, in order.
///
/// ```no_run
/// # use burn::{nn::{BatchNorm, BatchNormConfig}, prelude::*};
/// # use rekindle::{record::RecordError, reused};
/// # let device = Device::flex().autodiff();
/// # let norm = BatchNormConfig::new(3).init(&device);
/// # let batch = (Tensor::<2>::ones([4, 3], &device), Tensor::<2>::zeros([4, 3], &device));
/// let step = rekindle::record(&norm, &batch, |norm: &BatchNorm, (real, fake): (Tensor<2>, Tensor<2>)| {
///     let real = norm.forward(real);
///     let fake = reused(norm).forward(fake);
///     (real - fake).square().mean()
/// })?
/// .within("1GiB")?;
/// # Ok::<(), RecordError>(())
/// ```
pub fn reused<M: Module>(module: &M) -> &M {
    merge_recorded(module);
    module
}

/// The running statistics of a model: its tensors that require no gradient.
#[derive(Default)]
pub struct Statistics {
    places: Vec<usize>,
    bytes: u64,
}

/// Their values before a step.
pub struct Before(HashMap<usize, DispatchTensor>);

impl Statistics {
    /// Finds the statistics of a model with autodiff.
    #[must_use]
    pub fn of(model: &impl Module) -> Self {
        let places = Place::of(model).into_iter().enumerate();
        let found = places.filter(|(_, of)| of.dtype.is_float() && !of.trains);
        found.fold(Self::default(), |mut all, (place, of)| {
            all.places.push(place);
            all.bytes += (of.shape.num_elements() * of.dtype.size()) as u64 + HELD_BYTES;
            all
        })
    }

    /// Memory of the values while they are held.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    /// Their current values. Pending updates are merged first, as the next forward pass would do.
    #[must_use]
    pub fn before(&self, model: &impl Module) -> Before {
        if self.places.is_empty() {
            return Before(HashMap::new());
        }
        let values = tensors(&model.valid());
        let values = self
            .places
            .iter()
            .map(|&place| (place, values[place].clone()));
        Before(values.collect())
    }
}

impl Before {
    /// Restores these values in the model. The returned model has new leaves: burn keeps the rest of a step's graph as
    /// long as a leaf of it exists.
    #[must_use]
    pub fn put_back<M: Module>(self, model: M) -> M {
        // Use new statistics: a pending update in the old ones would be applied on top.
        let own = apart(&model);
        drop(model);
        put_statistics(own, &self.0)
    }
}
