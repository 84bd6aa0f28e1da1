//! Updates of parameters in the backward pass: when a step updates, what that takes, and a model whose parameters are
//! lent to a running step.
//!
//! While a step updates, its interpreter alone holds the parameters that train: so an update can be made in place, and
//! nothing holds an old value beside the new one. The model has empty tensors in their places until the step is done.

use std::{collections::HashMap, fmt, str::FromStr, sync::Arc};

use burn::{
    module::{Module, ModuleMapper, Param, ParamId},
    optim::GradientsParams,
    tensor::{DispatchTensor, GradientCheckpointingStrategy, Tensor},
};
use rekindle_plan::OptimizerCost;
use serde::{Deserialize, Serialize};

use super::{
    bridge::Interpreter, optimizer::Optimizer, rank::of_rank, recording::Parameter,
    recording::Recording,
};

/// When a training step updates its parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Update {
    /// When the step is done: it hands out all gradients.
    #[default]
    After,
    /// Each as soon as its gradient is complete and nothing that is still to run reads its old value. The gradient is
    /// freed at once.
    InBackward,
}

impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::After => "after",
            Self::InBackward => "in-backward",
        })
    }
}

impl FromStr for Update {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "after" => Ok(Self::After),
            "in-backward" => Ok(Self::InBackward),
            _ => Err(format!(
                "unknown update {text:?}; expected after or in-backward"
            )),
        }
    }
}

/// What the update of each parameter takes, where it was measured: with a gradient that lies in memory as the parameter
/// does, and with one whose first two dimensions are exchanged there.
pub(super) type UpdateCosts = Arc<HashMap<ParamId, [OptimizerCost; 2]>>;

/// What a parameter is in autodiff: its update is computed without, and becomes a leaf again.
pub struct Leaf {
    requires_grad: bool,
    /// A parameter recorded in another way than its layer's input would be refused by the next forward.
    strategy: Option<GradientCheckpointingStrategy>,
}

impl Leaf {
    /// That of a parameter's value.
    #[must_use]
    pub fn of<const D: usize>(parameter: &Tensor<D>) -> Self {
        Self {
            requires_grad: parameter.is_require_grad(),
            strategy: parameter.gradient_checkpointing_strategy(),
        }
    }

    /// The updated value, which has no graph, as a leaf of the same kind.
    #[must_use]
    pub fn again<const D: usize>(&self, updated: Tensor<D>) -> Tensor<D> {
        let Some(strategy) = self.strategy else {
            return updated;
        };
        updated
            .autodiff()
            .with_gradient_checkpointing_strategy(strategy)
            .set_require_grad(self.requires_grad)
    }
}

/// A model whose parameters are lent to a step.
pub(super) struct Lent {
    /// By parameters that the step updates.
    leaves: HashMap<ParamId, Leaf>,
    updated: HashMap<ParamId, DispatchTensor>,
    /// Its optimizer panicked: there is neither an old value nor a new one.
    lost: Option<ParamId>,
}

impl Lent {
    /// Takes from `model` the parameters that a recording updates: an interpreter has them by now.
    pub(super) fn take<M: Module>(model: &mut M, recording: &Recording) -> Self {
        struct Take<'a>(&'a mut HashMap<ParamId, Leaf>);
        impl ModuleMapper for Take<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                if !self.0.contains_key(&param.id) {
                    return param;
                }
                let (id, value, mapper) = param.consume();
                let leaf = Leaf::of(&value);
                let place = Tensor::empty([0; D], (&value.device(), value.dtype()));
                let place = leaf.again(place.without_autodiff());
                self.0.insert(id, leaf);
                Param::from_mapped_value(id, place, mapper)
            }
        }
        let none = || Leaf {
            requires_grad: false,
            strategy: None,
        };
        let updated = recording.updated();
        let mut leaves = updated.map(|one| (one.id, none())).collect();
        *model = model.clone().map(&mut Take(&mut leaves));
        Self {
            leaves,
            updated: HashMap::new(),
            lost: None,
        }
    }

    /// How many parameters have new values.
    pub(super) fn updated(&self) -> usize {
        self.updated.len()
    }

    /// Updates one parameter.
    pub(super) fn update<O: Optimizer>(
        &mut self,
        parameter: &Parameter,
        value: DispatchTensor,
        gradient: DispatchTensor,
        rate: f64,
        optimizer: &mut O,
    ) {
        let id = parameter.id;
        let Some(leaf) = self.leaves.get(&id) else {
            return;
        };
        self.lost = Some(id);
        let updated = of_rank!(&value, D => {
            let param = Param::initialized(id, leaf.again(Tensor::<D>::from_dispatch(value)));
            let mut gradients = GradientsParams::new();
            gradients.register::<D>(id, Tensor::from_dispatch(gradient));
            let (_, updated, _) = optimizer.step(rate, param, gradients).consume();
            updated.without_autodiff().into_dispatch()
        });
        self.updated.insert(id, updated);
        self.lost = None;
    }

    /// Puts all parameters back into the model, those that were not updated as the interpreter has them.
    pub(super) fn put_back<M: Module>(
        self,
        model: &mut M,
        recording: &Recording,
        interpreter: &mut dyn Interpreter,
    ) {
        struct PutBack(HashMap<ParamId, DispatchTensor>);
        impl ModuleMapper for PutBack {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let Some(value) = self.0.get(&param.id) else {
                    return param;
                };
                let value = Tensor::<D>::from_dispatch(value.clone());
                let (id, place, mapper) = param.consume();
                Param::from_mapped_value(id, Leaf::of(&place).again(value), mapper)
            }
        }
        let mut values = self.updated;
        for one in recording.updated() {
            if self.lost != Some(one.id) {
                values.entry(one.id).or_insert_with(|| {
                    interpreter.hand_out(&recording.tensors.last_read(one.tensor))
                });
            }
        }
        *model = model.clone().map(&mut PutBack(values));
    }
}
