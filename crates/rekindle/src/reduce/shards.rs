//! Updates divided among ranks: each keeps the optimizer's state of some parameters.
//!
//! ZeRO stage 1 (Rajbhandari et al. 2020, arXiv 1910.02054, section 5.1). All ranks have all gradients; each updates
//! its own parameters and sends their values to the others. Parameters are not split: they are assigned in order of
//! size, largest first, each to the rank that has the fewest numbers so far. The fullest of n ranks has at most 4/3 -
//! 1/(3 n) times the load of the fullest rank in the best assignment (Graham 1969, "Bounds on multiprocessing timing
//! anomalies", theorem 2).
//!
//! A step sends all trained parameters once, from their ranks to all others, through host memory.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::Tensor,
};

use super::{ReduceError, Reducer, sending::sent};
use crate::record::{Place, TimedExchange};

/// Which rank keeps the optimizer's state of which parameter. The assignment is the same on all ranks if their models
/// have the same structure.
#[derive(Clone)]
pub struct Shards {
    reducer: Reducer,
    /// In the model's order.
    owners: Arc<[(ParamId, usize)]>,
    own: Arc<HashSet<ParamId>>,
}

impl Shards {
    /// Assigns the trained parameters of `model` to ranks.
    pub fn of<M: Module>(model: &M, reducer: Reducer) -> Self {
        let mut known = HashSet::new();
        let places = Place::of(model).into_iter();
        // Parameters with the same id are one parameter.
        let first = places.filter(|place| place.trains && known.insert(place.id));
        let sizes = first.map(|place| (place.id, place.shape.num_elements()));
        let (ids, sizes): (Vec<_>, Vec<_>) = sizes.unzip();
        let owners = shared_out(&sizes, reducer.ranks());
        let owners: Arc<[_]> = ids.into_iter().zip(owners).collect();
        let own = owners.iter().filter(|(_, owner)| *owner == reducer.rank());
        Self {
            own: Arc::new(own.map(|(id, _)| *id).collect()),
            owners,
            reducer,
        }
    }

    /// Whether this rank updates the parameter and keeps its state.
    #[must_use]
    pub fn keeps(&self, id: ParamId) -> bool {
        self.own.contains(&id)
    }

    /// The assigned parameters, in the model's order, and their ranks.
    #[must_use]
    pub fn owners(&self) -> &[(ParamId, usize)] {
        &self.owners
    }

    /// Drops the gradients of parameters that other ranks update.
    pub(crate) fn drop_others<M: Module>(&self, model: &M, gradients: &mut GradientsParams) {
        struct Others<'a>(&'a Shards, &'a mut GradientsParams);
        impl ModuleVisitor for Others<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if !self.0.keeps(param.id) {
                    drop(self.1.remove::<D>(param.id));
                }
            }
        }
        model.visit(&mut Others(self, gradients));
    }

    /// The ranks.
    #[must_use]
    pub fn reducer(&self) -> &Reducer {
        &self.reducer
    }

    /// Returns the model with every parameter's updated value from its rank; for parameters with the same id, the first
    /// one counts. After an error, the model is only partly updated. Times are counted from the call.
    pub fn share<M: Module>(&self, model: M) -> (M, Result<TimedExchange, ReduceError>) {
        let mut due: HashMap<_, _> = self.owners.iter().copied().collect();
        let owner = |id: ParamId, trains| if trains { due.remove(&id) } else { None };
        sent(&self.reducer, model, owner)
    }
}

/// The rank that each size is assigned to: see the [module documentation](self). Of equal sizes the first is assigned
/// first, and of equally full ranks the first one is chosen.
fn shared_out(sizes: &[usize], ranks: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&place| Reverse(sizes[place]));
    let mut loads = vec![0; ranks];
    let mut owners = vec![0; sizes.len()];
    for place in order {
        let least = (0..ranks).min_by_key(|&rank| loads[rank]);
        owners[place] = least.unwrap_or_default();
        loads[owners[place]] += sizes[place];
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fullest(sizes: &[usize], owners: &[usize], ranks: usize) -> usize {
        let load = |rank| {
            let own = sizes
                .iter()
                .zip(owners)
                .filter(|(_, owner)| **owner == rank);
            own.map(|(size, _)| size).sum()
        };
        (0..ranks).map(load).max().unwrap_or_default()
    }

    /// The load of the fullest rank as parameters are assigned.
    fn fullest_share(sizes: &[usize], ranks: usize) -> usize {
        fullest(sizes, &shared_out(sizes, ranks), ranks)
    }

    /// All assignments of a few sizes.
    #[test]
    fn the_fullest_rank_is_within_grahams_bound_of_the_best() {
        let lists: [&[usize]; 5] = [
            &[5, 5, 4, 4, 3, 3, 3],
            &[1, 1, 1],
            &[7],
            &[64, 4096, 64, 4096, 320, 5],
            &[9, 8, 7, 6, 5, 4, 3, 2],
        ];
        for (sizes, ranks) in lists
            .into_iter()
            .flat_map(|list| [(list, 2_usize), (list, 3)])
        {
            let assignments = (0..ranks.pow(sizes.len() as u32)).map(|number: usize| {
                let owner = |place| number / ranks.pow(place) % ranks;
                let owners: Vec<_> = (0..sizes.len() as u32).map(owner).collect();
                fullest(sizes, &owners, ranks)
            });
            let best = assignments.min().expect("some");
            let found = fullest_share(sizes, ranks);
            assert!(
                3 * ranks * found <= (4 * ranks - 1) * best,
                "{sizes:?}, {ranks}: {found}, {best}"
            );
        }
        // The examples of Graham's theorem, which reach the bound: 11 of 9, and 7 of 6.
        assert_eq!(fullest_share(&[5, 5, 4, 4, 3, 3, 3], 3), 11);
        assert_eq!(fullest_share(&[3, 3, 2, 2, 2], 2), 7);
    }
}
