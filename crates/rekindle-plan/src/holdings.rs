//! The state at a point of a schedule, and the actions that are allowed there.
//!
//! [`Schedule::new`](crate::Schedule::new) and [`simulate`](crate::simulate) both run this state machine, so an
//! accepted schedule can be simulated. It does not know sizes.

use crate::action::{Action, StageId};

/// The rule of schedules that an action violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    /// The stage is not part of the chain.
    #[error("the stage is not in the chain, whose last stage is {last}", last = stages.saturating_sub(1))]
    NoSuchStage {
        /// The number of stages of the chain.
        stages: usize,
    },
    /// The action reads an activation that is not held.
    #[error(
        "it reads a_{activation}, which is neither kept nor inside the graph of the stage before"
    )]
    InputMissing {
        /// The i of a_i.
        activation: usize,
    },
    /// A stand-alone copy of its output is already held.
    #[error("it computes a_{activation}, which is still kept")]
    OutputAlreadyHeld {
        /// The i of a_i.
        activation: usize,
    },
    /// It would drop an activation that a recorded graph still needs.
    #[error("it drops a_{activation}, which the recorded graph of stage {activation} still needs")]
    InputInUse {
        /// The i of a_i.
        activation: usize,
    },
    /// The stage is recorded already.
    #[error("it records X_{graph}, which is still held")]
    GraphAlreadyHeld {
        /// The i of X_i, the graph of stage i - 1.
        graph: usize,
    },
    /// The stage's backward pass has already run, so nothing would consume the graph.
    #[error("it records stage {stage}, whose backward has run: nothing would use the graph")]
    BackwardDone {
        /// The stage.
        stage: usize,
    },
    /// The stage was not recorded.
    #[error("it reads X_{graph}, which is not held: the stage needs a forward_tracked first")]
    GraphMissing {
        /// The i of X_i, the graph of stage i - 1.
        graph: usize,
    },
    /// The gradient is not held: the loss or the backward pass of the next stage must run first, and only once.
    #[error(
        "it reads y_{gradient}, which is not held: the backward of every stage runs once, from the last to the first"
    )]
    GradientMissing {
        /// The i of y_i, the gradient of a_i.
        gradient: usize,
    },
    /// The loss runs once.
    #[error("the loss has run already")]
    SecondLoss,
    /// The optimizer needs all parameter gradients.
    #[error("the optimizer runs after the backward of every stage")]
    OptimizeTooEarly,
    /// The optimizer runs once and last.
    #[error("the optimizer is the last action")]
    AfterOptimize,
}

/// The activations, graphs and gradients that are held in a chain of `stages` stages.
pub(crate) struct Holdings {
    stages: usize,
    /// `activation[i]`: a_i is held stand-alone.
    activation: Vec<bool>,
    /// `graph[i]`: X_i, the graph of stage i - 1, is held. Index 0 is never true.
    graph: Vec<bool>,
    /// The i of the one gradient y_i that is held.
    gradient: Option<usize>,
    lost: bool,
    optimized: bool,
}

/// What an action freed in addition to what it always frees.
pub(crate) struct Effect {
    /// The stand-alone input was freed.
    pub(crate) freed_input: bool,
}

impl Holdings {
    /// The start of a step: only a_0 is held.
    pub(crate) fn new(stages: usize) -> Holdings {
        let mut activation = vec![false; stages + 1];
        activation[0] = true;
        Holdings {
            stages,
            activation,
            graph: vec![false; stages + 1],
            gradient: None,
            lost: false,
            optimized: false,
        }
    }

    /// The lowest stage whose backward pass has run; `None` before the loss has run.
    pub(crate) fn backward_reached(&self) -> Option<StageId> {
        self.gradient.map(StageId)
    }

    /// Whether a_i is held, stand-alone or inside a graph.
    pub(crate) fn holds(&self, i: usize) -> bool {
        self.activation[i] || self.graph[i]
    }

    /// Performs an action, or returns the rule that forbids it and changes nothing.
    pub(crate) fn apply(&mut self, action: Action) -> Result<Effect, Rule> {
        if self.optimized {
            return Err(Rule::AfterOptimize);
        }
        if let Some(stage) = action.stage()
            && stage.0 >= self.stages
        {
            return Err(Rule::NoSuchStage {
                stages: self.stages,
            });
        }
        let freed_input = match action {
            Action::Forward(StageId(i)) => {
                self.reads_activation(i)?;
                self.makes_activation(i + 1)?;
                if i > 0 && self.activation[i] && self.graph[i + 1] {
                    return Err(Rule::InputInUse { activation: i });
                }
                self.activation[i + 1] = true;
                self.frees_activation(i)
            }
            Action::ForwardKeep(StageId(i)) => {
                self.reads_activation(i)?;
                self.makes_activation(i + 1)?;
                self.activation[i + 1] = true;
                false
            }
            Action::ForwardTracked(StageId(i)) => {
                self.reads_activation(i)?;
                if self.graph[i + 1] {
                    return Err(Rule::GraphAlreadyHeld { graph: i + 1 });
                }
                if self.gradient.is_some_and(|gradient| gradient <= i) {
                    return Err(Rule::BackwardDone { stage: i });
                }
                self.graph[i + 1] = true;
                false
            }
            Action::Loss => {
                self.reads_activation(self.stages)?;
                if self.lost {
                    return Err(Rule::SecondLoss);
                }
                self.lost = true;
                self.gradient = Some(self.stages);
                self.frees_activation(self.stages)
            }
            Action::Backward(StageId(i)) => {
                if self.gradient != Some(i + 1) {
                    return Err(Rule::GradientMissing { gradient: i + 1 });
                }
                if !self.graph[i + 1] {
                    return Err(Rule::GraphMissing { graph: i + 1 });
                }
                self.reads_activation(i)?;
                self.gradient = Some(i);
                self.graph[i + 1] = false;
                self.frees_activation(i)
            }
            Action::Optimize => {
                if self.gradient != Some(0) {
                    return Err(Rule::OptimizeTooEarly);
                }
                self.optimized = true;
                false
            }
        };
        Ok(Effect { freed_input })
    }

    fn reads_activation(&self, i: usize) -> Result<(), Rule> {
        if self.holds(i) {
            Ok(())
        } else {
            Err(Rule::InputMissing { activation: i })
        }
    }

    fn makes_activation(&self, i: usize) -> Result<(), Rule> {
        if self.activation[i] {
            Err(Rule::OutputAlreadyHeld { activation: i })
        } else {
            Ok(())
        }
    }

    /// Frees a stand-alone a_i, and returns whether there was one. a_0 is never freed.
    fn frees_activation(&mut self, i: usize) -> bool {
        i > 0 && std::mem::replace(&mut self.activation[i], false)
    }
}
