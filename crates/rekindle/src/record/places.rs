//! The tensors of a module by place, in the order in which burn visits them.
//!
//! A step computes with the tensor at a place, not with all that have one [`ParamId`]: a clone of a module has its ids, and
//! other values as soon as one of the two is updated. Places hold one tensor only where burn's graph has one leaf for
//! them, as for the clones of a tied layer.

use std::collections::HashMap;

use burn::{
    module::{Flag, Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{Bool, DType, DispatchTensor, Int, Shape, Tensor, kind::Basic},
};
use burn_backend::TensorMetadata;

use super::{bridge, leaf::again, rank::of_rank};

/// One place of a module, without its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) id: ParamId,
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
    /// Whether its tensor requires a gradient.
    pub(crate) trains: bool,
    /// The first place with the same tensor: itself unless layers are tied.
    pub(crate) first: usize,
}

/// A tensor of the module. Tensors have numbers in a recording, and burn's ids before they are numbered.
#[derive(Debug, Clone)]
pub(crate) struct Parameter<T = usize> {
    /// burn's id, which copies of the module have too.
    pub(crate) id: ParamId,
    /// Its first place.
    pub(super) place: usize,
    /// Its path in the module: `layers.1.weight`.
    pub(crate) path: String,
    /// The tensor.
    pub(crate) tensor: T,
    /// Its gradient, if it trains and the loss depends on it.
    pub(crate) gradient: Option<T>,
    /// Whether it requires a gradient.
    pub(crate) trains: bool,
}

impl Place {
    /// All places of a module.
    pub(crate) fn of<M: Module>(model: &M) -> Vec<Self> {
        struct Places {
            all: Vec<Place>,
            /// The first place of each leaf of burn's graph.
            leaves: HashMap<u64, usize>,
        }
        impl Places {
            fn add<const D: usize, K: Basic>(
                &mut self,
                id: ParamId,
                tensor: Tensor<D, K>,
                trains: bool,
            ) {
                let place = self.all.len();
                let (shape, dtype) = (tensor.shape(), tensor.dtype());
                let tensor = trains.then(|| tensor.into_dispatch());
                let first = match tensor.and_then(|tensor| bridge::node(&tensor)) {
                    Some(leaf) => *self.leaves.entry(leaf).or_insert(place),
                    None => place,
                };
                self.all.push(Place {
                    id,
                    shape,
                    dtype,
                    trains,
                    first,
                });
            }
        }
        impl ModuleVisitor for Places {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let tensor = param.val();
                let trains = tensor.is_require_grad();
                self.add(param.id, tensor, trains);
            }

            fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
                self.add(param.id, param.val(), false);
            }

            fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
                self.add(param.id, param.val(), false);
            }
        }
        let mut places = Places {
            all: Vec::new(),
            leaves: HashMap::new(),
        };
        model.visit(&mut places);
        places.all
    }
}

/// The tensors at all places.
pub(crate) fn tensors<M: Module>(model: &M) -> Vec<DispatchTensor> {
    struct Tensors(Vec<DispatchTensor>);
    impl ModuleVisitor for Tensors {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_dispatch());
        }

        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            self.0.push(param.val().into_dispatch());
        }

        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            self.0.push(param.val().into_dispatch());
        }
    }
    let mut tensors = Tensors(Vec::new());
    model.visit(&mut tensors);
    tensors.0
}

/// A copy of a module with running statistics of its own. `train` alone would also train what is from `valid`.
pub(crate) fn apart<M: Module>(model: &M) -> M {
    struct Flags(Vec<bool>);
    impl ModuleVisitor for Flags {
        fn visit_flag(&mut self, param: &Param<Flag>) {
            self.0.push(param.is_enabled());
        }
    }
    struct Put(std::vec::IntoIter<bool>);
    impl ModuleMapper for Put {
        fn map_flag(&mut self, param: Param<Flag>) -> Param<Flag> {
            match self.0.next() {
                Some(on) => param.with_value(on),
                None => param,
            }
        }
    }
    let mut flags = Flags(Vec::new());
    model.visit(&mut flags);
    model.valid().train().map(&mut Put(flags.0.into_iter()))
}

/// Replaces float tensors by what `new` returns for a place and its tensor; `None` leaves it as it is. Running statistics are
/// replaced for all clones of a module, which share them.
pub(super) fn replaced<M: Module>(
    model: M,
    new: impl FnMut(usize, &DispatchTensor) -> Option<DispatchTensor>,
) -> M {
    struct Mapper<F> {
        new: F,
        next: usize,
    }
    impl<F> Mapper<F> {
        fn next(&mut self) -> usize {
            self.next += 1;
            self.next - 1
        }
    }
    impl<F> ModuleMapper for Mapper<F>
    where
        F: FnMut(usize, &DispatchTensor) -> Option<DispatchTensor>,
    {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let place = self.next();
            let Some(new) = (self.new)(place, &param.val().into_dispatch()) else {
                return param;
            };
            param.map(|_| Tensor::from_dispatch(new))
        }

        fn map_int<const D: usize>(
            &mut self,
            param: Param<Tensor<D, Int>>,
        ) -> Param<Tensor<D, Int>> {
            self.next();
            param
        }

        fn map_bool<const D: usize>(
            &mut self,
            param: Param<Tensor<D, Bool>>,
        ) -> Param<Tensor<D, Bool>> {
            self.next();
            param
        }
    }
    model.map(&mut Mapper { new, next: 0 })
}

/// Puts values, without autodiff, into a model's running statistics by place.
pub(crate) fn put_statistics<M: Module>(model: M, values: &HashMap<usize, DispatchTensor>) -> M {
    replaced(model, |place, old| {
        Some(again(old, values.get(&place)?.clone()))
    })
}

/// The first of the places with `moved` running statistics whose statistics are also those of an earlier one: clones of a
/// batch norm share them.
pub(super) fn shared_statistics<M: Module>(
    model: &M,
    places: &[Place],
    moved: &[usize],
) -> Option<usize> {
    let later = |(number, &first): (usize, &usize)| {
        let others = moved[number + 1..].iter().copied();
        let others = others.filter(move |&other| places[other].id == places[first].id);
        others.map(move |other| (first, other))
    };
    let pairs: Vec<(usize, usize)> = moved.iter().enumerate().flat_map(later).collect();
    if pairs.is_empty() {
        return None;
    }
    let values = tensors(&model.valid());
    let mut firsts: Vec<usize> = pairs.iter().map(|&(first, _)| first).collect();
    firsts.dedup();
    let put = |value: &dyn Fn(usize, &DispatchTensor) -> DispatchTensor| {
        let firsts = firsts.iter().zip(2..);
        let values = firsts.map(|(&first, times)| (first, value(times, &values[first])));
        drop(put_statistics(model.clone(), &values.collect()));
    };
    // Shapes that no other has show where else a value is seen.
    put(
        &|times, value| of_rank!(value, D => Tensor::<D>::from_dispatch(value.clone()).repeat_dim(0, times).into_dispatch()),
    );
    let seen = tensors(model);
    put(&|_, value| value.clone());
    let one = |&&(first, other): &&(usize, usize)| seen[first].shape() == seen[other].shape();
    pairs.iter().find(one).map(|&(_, other)| other)
}
