//! Measures the cost of an optimizer's step with one parameter of each shape and [treatment](Treatment), at a learning
//! rate of 0.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    time::Instant,
};

use burn::{
    module::{Module, ModuleVisitor, Param, ParamGroup, ParamId},
    optim::{GradientsParams, ModuleOptimizer, SgdConfig},
    tensor::{DType, Device, Shape, Tensor},
};
use rekindle_plan::{Bytes, OptimizerCost, Seconds};

use super::{
    leaf::{Leaf, Placed, free_dead_nodes},
    places::Place,
    update::Update,
    update_costs::UpdateCosts,
};
use crate::{meter::Meter, reduce::shards::Shards};

/// Updates modules from gradients; measured by [`with_optimizer`](super::Recorded::with_optimizer).
pub trait Optimizer: 'static {
    /// An optimizer with the same settings and without state, which is tried on a parameter and then dropped.
    #[must_use]
    fn for_trial(&self) -> Self;

    /// Updates the parameters of `module` that have a gradient.
    #[must_use]
    fn step<M: Module>(&mut self, rate: f64, module: M, gradients: GradientsParams) -> M;

    /// Whether a state for this parameter is already in use on `device`: then its next update creates none.
    fn has_state(&self, _parameter: ParamId, _device: &Device) -> bool {
        false
    }

    /// The number of tensors in a parameter's state, if the optimizer can keep each parameter's in host memory between its
    /// updates. Then a plan over a [link](super::Recorded::with_link) may count on that: of those in
    /// [`Step::state_on_host`](super::Step::state_on_host) it brings the state to the device for the update alone.
    ///
    /// The default is 0: it cannot. burn's [`ModuleOptimizer`] gives no access to single states.
    fn movable_tensors(&self) -> usize {
        0
    }

    /// The assignment of parameters to ranks, if ranks divide the updates: a step then makes only this rank's updates,
    /// and receives the others by [`Shards::share`].
    #[doc(hidden)]
    fn shards(&self) -> Option<&Shards> {
        None
    }
}

impl Optimizer for ModuleOptimizer {
    fn for_trial(&self) -> Self {
        // Groups and clipping stay; the record replaces all states.
        let no_states = Self::from(SgdConfig::new().build()).to_record();
        self.clone().load_record(no_states)
    }

    fn step<M: Module>(&mut self, rate: f64, module: M, gradients: GradientsParams) -> M {
        Self::step(self, rate, module, gradients)
    }

    /// `false` on other devices than burn's default one, to which `load_record` loads: the first update moves a state
    /// from there.
    fn has_state(&self, parameter: ParamId, device: &Device) -> bool {
        if *device != Device::default() {
            return false;
        }
        // Only a record shows states, as copies: of one parameter at a time.
        let others = ParamGroup::all().exclude(ParamGroup::from_ids(vec![parameter]));
        let only = self
            .clone()
            .with_group(others, SgdConfig::new().build(), None);
        !only.to_record().is_empty()
    }
}

/// The parameters of `model` whose state is already in use.
pub(super) fn with_state<M: Module>(model: &M, optimizer: &impl Optimizer) -> HashSet<ParamId> {
    let devices = model.devices();
    let trained = Place::of(model).into_iter().filter(|place| place.trains);
    let in_use = |id: &ParamId| {
        devices
            .iter()
            .any(|device| optimizer.has_state(*id, device))
    };
    trained.map(|place| place.id).filter(in_use).collect()
}

/// Measures `optimizer` on the parameters of `model`, which keep their values: the cost of each update, with temporary
/// bytes above parameter, gradient and state. The parameters in `with_state` need no state.
pub(super) fn measured<M: Module, O: Optimizer>(
    model: &M,
    (optimizer, with_state): (&O, &HashSet<ParamId>),
    update: Update,
    meter: &dyn Meter,
) -> UpdateCosts {
    let mut each = Each {
        optimizer,
        with_state,
        update,
        meter,
        path: Vec::new(),
        known: HashMap::new(),
        parameters: HashMap::new(),
        untried: Vec::new(),
        keeps_storage: false,
        node_bytes: Cell::default(),
    };
    model.visit(&mut each);
    for (id, shape, dtype) in each.untried {
        let expected = || expected(&each.known, &shape, dtype);
        each.parameters.entry(id).or_insert_with(expected);
    }
    UpdateCosts {
        each: each.parameters.into(),
        keeps_storage: each.keeps_storage,
        node_bytes: each.node_bytes.get(),
        shards: optimizer.shards().cloned(),
        tensors: optimizer.movable_tensors(),
        on_host: None,
    }
}

/// The costs of updating a parameter of each kind.
type Known = HashMap<(Shape, DType, Treatment), [OptimizerCost; 2]>;

/// The expected costs of a parameter that is not tried: what is known of the same shape, else the most that any update takes
/// for its size.
fn expected(known: &Known, shape: &Shape, dtype: DType) -> [OptimizerCost; 2] {
    let same = |one: &&(Shape, DType, Treatment)| one.0 == *shape && one.1 == dtype;
    if let Some(kind) = known.keys().find(same) {
        return known[kind];
    }
    let bytes = |shape: &Shape, dtype: DType| (shape.num_elements() * dtype.size()) as f64;
    let scaled = |of: fn(&OptimizerCost) -> f64| {
        let each = known.iter().flat_map(|((shape, dtype, _), costs)| {
            costs
                .iter()
                .map(move |cost| of(cost) / bytes(shape, *dtype))
        });
        each.fold(0.0, f64::max) * bytes(shape, dtype)
    };
    let whole = |of| Bytes(scaled(of).ceil() as u64);
    [OptimizerCost {
        step_s: Seconds(scaled(|one| one.step_s.0)),
        state_bytes: whole(|one| one.state_bytes.0 as f64),
        temp_bytes: whole(|one| one.temp_bytes.0 as f64),
    }; 2]
}

/// Zeros on the device of a parameter, and of its type; if they are `turned`, their first two dimensions are exchanged in
/// memory, as burn's convolutions return a gradient: no operation can reuse its storage.
fn zeros<const D: usize>(mut shape: [usize; D], like: &Tensor<D>, turned: bool) -> Tensor<D> {
    let zeros = |shape| Tensor::zeros(shape, (&like.device(), like.dtype())).without_autodiff();
    if !turned {
        return zeros(shape);
    }
    shape.swap(0, 1);
    zeros(shape).swap_dims(0, 1)
}

/// The numbers in the storage of the gradient with which a [treatment](Treatment) is found.
const GRADIENTS: usize = 16 << 10;

/// What an optimizer does with a parameter, apart from its shape: those of another group get another value or state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Treatment {
    /// The bits of a parameter of 1 after an update with a gradient of 1.
    updated: Option<u64>,
    /// Bytes in use after the update that were not before it.
    left: Bytes,
}

impl Treatment {
    /// Whether the optimizer's state keeps the storage of the first gradient.
    fn keeps_storage(self, dtype: DType) -> bool {
        self.left.0 >= (GRADIENTS * dtype.size()) as u64
    }
}

/// Bytes above which only a part of a parameter is tried.
const LARGE_BYTES: usize = 4 << 20;

/// The rows of a parameter that are tried, and how many times as many it has.
pub(super) fn tried(shape: &Shape, number_bytes: usize) -> (usize, f64) {
    let parts = (shape.num_elements() * number_bytes).div_ceil(LARGE_BYTES);
    let all = shape.as_slice().first().map_or(1, |rows| *rows);
    let rows = all.div_ceil(parts.max(1));
    (rows, all as f64 / rows.max(1) as f64)
}

struct Each<'a, O> {
    optimizer: &'a O,
    with_state: &'a HashSet<ParamId>,
    update: Update,
    meter: &'a dyn Meter,
    path: Vec<String>,
    known: Known,
    parameters: HashMap<ParamId, [OptimizerCost; 2]>,
    /// Parameters that do not train yet, or whose updates other ranks make: there may be no room for the state of what never
    /// trains.
    untried: Vec<(ParamId, Shape, DType)>,
    keeps_storage: bool,
    node_bytes: Cell<Bytes>,
}

impl<O: Optimizer> ModuleVisitor for Each<'_, O> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let others = |shards: &Shards| !shards.keeps(param.id);
        if !param.is_require_grad() || self.optimizer.shards().is_some_and(others) {
            self.untried.push((param.id, param.shape(), param.dtype()));
            return;
        }
        // Parameters with the same id are one parameter, with one state.
        if self.parameters.contains_key(&param.id) {
            return;
        }
        let step = || {
            let alike = self.step_alone(param, false);
            // Vectors cannot be turned.
            let turned = (D > 1).then(|| self.step_alone(param, true));
            [alike, turned.unwrap_or(alike)]
        };
        let treatment = self.treatment(param);
        let kind = (param.shape(), param.dtype(), treatment);
        let known = self.known.get(&kind).copied();
        let mut one = known.unwrap_or_else(|| {
            // The first step of a process allocates tables that it keeps.
            step();
            step()
        });
        self.known.insert(kind, one);
        if self.with_state.contains(&param.id) {
            for cost in &mut one {
                cost.state_bytes = Bytes::ZERO;
            }
        } else {
            self.keeps_storage |= treatment.keeps_storage(param.dtype());
        }
        self.parameters.insert(param.id, one);
    }
}

impl<O: Optimizer> Each<'_, O> {
    /// Steps a parameter of one number at the path of `param`, with a gradient that is a single number of a larger storage.
    fn treatment<const D: usize>(&self, param: &Param<Tensor<D>>) -> Treatment {
        let like = param.val();
        let ones = |count: usize| {
            let mut shape = [1; D];
            shape[0] = count;
            Tensor::<D>::ones(shape, (&like.device(), like.dtype())).without_autodiff()
        };
        let path = self.path.join(".");
        let own = Param::initialized(param.id, Leaf::of(&like).again(ones(1)));
        let mut optimizer = self.optimizer.for_trial();
        let before = self.meter.read().in_use_bytes;
        let mut gradients = GradientsParams::new();
        gradients.register::<D>(own.id, ones(GRADIENTS).narrow(0, 0, 1));
        let own = Placed {
            path: &path,
            param: own,
        };
        let own = optimizer.step(1.0, own, gradients);
        let left = self.meter.read().in_use_bytes - before;
        let updated = own.param.val().into_data();
        // Of each trial burn's graph would keep a node until a backward pass.
        drop(own);
        free_dead_nodes(&like.device());
        Treatment {
            updated: updated.iter::<f64>().next().map(f64::to_bits),
            left,
        }
    }

    /// The cost of updating a separate copy of a parameter by a gradient that may be turned: of an update that creates its
    /// state, and of one with existing state. After the step the model holds the old value meanwhile, which is unchanged. A
    /// large parameter is represented by some of its rows, because there may be no room for a full copy beside the model.
    fn step_alone<const D: usize>(&self, param: &Param<Tensor<D>>, turned: bool) -> OptimizerCost {
        let like = param.val();
        let mut shape = like.dims();
        let (rows, factor) = tried(&like.shape(), like.dtype().size());
        shape[0] = rows;
        let own = Leaf::of(&like).again(zeros(shape, &like, false));
        let mut own = Param::initialized(param.id, own);
        let path = self.path.join(".");
        let mut optimizer = self.optimizer.for_trial();
        let mut cost = OptimizerCost::default();
        free_dead_nodes(&own.lazy_device());
        for first in [true, false] {
            let before = self.meter.read().in_use_bytes;
            let mut gradients = GradientsParams::new();
            gradients.register::<D>(own.id, zeros(shape, &like, turned));
            let held = (self.update == Update::After).then(|| own.clone());
            self.meter.start_interval();
            let begins = self.meter.read().in_use_bytes;
            let started = Instant::now();
            let placed = Placed {
                path: &path,
                param: own,
            };
            let updated = optimizer.step(0.0, placed, gradients).param;
            // Waits for queued work.
            let taken = self.meter.read().peak_in_use_bytes - begins;
            cost.step_s = Seconds(started.elapsed().as_secs_f64());
            own = held.unwrap_or(updated);
            if first {
                // The gradient has been freed. Until a backward pass burn's graph keeps nodes of what was updated.
                let left = self.meter.read().in_use_bytes - before;
                free_dead_nodes(&own.lazy_device());
                cost.state_bytes = self.meter.read().in_use_bytes - before;
                cost.temp_bytes = taken - cost.state_bytes;
                let nodes = left - cost.state_bytes;
                self.node_bytes.set(self.node_bytes.get().max(nodes));
            } else {
                cost.temp_bytes = cost.temp_bytes.max(taken);
            }
        }
        let whole = |bytes: Bytes| Bytes((bytes.0 as f64 * factor).ceil() as u64);
        OptimizerCost {
            state_bytes: whole(cost.state_bytes),
            temp_bytes: whole(cost.temp_bytes),
            step_s: cost.step_s * factor,
        }
    }
}
