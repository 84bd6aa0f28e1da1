//! What the program `rekindle` asks of a recorded step, and nobody else: not a part of the library's promise.

use burn::module::Module;
use rekindle_plan::{
    Bytes, OptimizerCost, Planner,
    graph::{Graph, Program},
};

use super::{RecordError, Recorded, Step, StepProfile, Update, ways::How};
pub use super::{
    error::held_at,
    extra::{Extra, ExtraWork, extra},
    host::{PIECE_BYTES, pieces},
    leaf::{Leaf, free_dead_nodes},
    optimizer_state::StateChoice,
    options::{PlanElsewhere, ProgramOptions, Wanted, with_reserve},
    output::SpanReading,
    profile::{plan_of_chain, plan_of_profile},
    staged::{AlikeTensors, Order, SpanChange, StagedPlan, action},
    update::Updates,
};
pub use crate::{
    meter::{pool::Driver, recorder::PhaseRecorder},
    quiet::catch,
    reduce::{
        reducer::{TIME_LIMIT, agree, named},
        rehearsal::rehearsal,
        shards::Shards,
    },
    statistics::{Before, Statistics},
};
use crate::{step_result::StepResult, tensor_tree::TensorTree};

#[doc(hidden)]
impl<M, I, R, F> Recorded<'_, M, I, R, F>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
    /// Decides what users do not.
    #[must_use]
    pub fn with_program_options(mut self, options: ProgramOptions) -> Self {
        self.options.program = options;
        self
    }

    /// The bytes of the largest tensor that an operation of the step makes; any program of the step has memory for it.
    pub fn largest_tensor(&self) -> Bytes {
        let recording = &self.recorded.0;
        let made = recording.operations.iter().flat_map(|one| one.outputs());
        let bytes = made.map(|tensor| recording.tensors.value_bytes(tensor));
        Bytes(bytes.max().unwrap_or_default())
    }
}

#[doc(hidden)]
impl<M, I, R, F> Step<M, I, R, F>
where
    M: Module,
    I: TensorTree,
    R: StepResult,
    F: Fn(&M, I) -> R,
{
    /// When the step updates its parameters; see [`PlanSummary::update`](super::PlanSummary::update).
    pub fn update(&self) -> Update {
        self.planning.way.update
    }

    /// The measured graph and the program of the last step, for inspection and for planning again.
    pub fn graph(&self) -> (Graph, Program) {
        let state = self.state.borrow();
        let planned = &state.plans[0];
        (planned.linked(), planned.prepared.program.clone())
    }

    /// The assignment of parameters to ranks, if they divide the optimizer's state in this plan.
    pub fn shards(&self) -> Option<Shards> {
        self.planning.updates().shards
    }

    /// Sets whether the next steps read memory after every [`Span`](rekindle_plan::graph::Span) of their program, for
    /// [`Output::spans`](super::Output::spans), which takes longer.
    pub fn set_watched(&mut self, on: bool) {
        self.watched = on;
    }

    /// Sets whether values are checked: see [`with_finite_check`](super::Recorded::with_finite_check).
    pub fn set_finite_check(&mut self, on: bool) {
        self.planning.options.check = on;
    }

    /// The plan of the last step, or of the first if none ran, in terms of the model's stages.
    pub fn staged_plan(&self) -> StagedPlan {
        StagedPlan::new(&self.state.borrow().plans[0])
    }

    /// The tensors that each span of the last step's program, or of the first if none ran, makes and frees, and those
    /// that go with the update after it.
    pub fn changes(&self) -> Vec<SpanChange> {
        self.state.borrow().plans[0].changes()
    }

    /// The measured step, for planning elsewhere.
    pub fn profile(&self) -> StepProfile {
        let planned = &self.state.borrow().plans[0];
        let autodiff = self.planning.autodiff_time(&planned.measured.recording);
        StepProfile::new(planned, autodiff)
    }

    /// Identifies the recorded step: another model, batch or loss has another.
    pub fn fingerprint(&self) -> u64 {
        let planned = &self.state.borrow().plans[0];
        planned.measured.recording.fingerprint()
    }

    /// The measured cost of the optimizer's step, with the state that it did not have when the step was recorded.
    pub fn optimizer_cost(&self) -> OptimizerCost {
        let state = self.state.borrow();
        self.planning.optimizer(&state.plans[0].measured.recording)
    }

    /// What the update of one parameter takes at most besides gradient and state; with the state where that comes from the host.
    pub fn largest_update(&self) -> Bytes {
        let state = self.state.borrow();
        let recording = &state.plans[0].measured.recording;
        self.planning.updates().most_temporary(recording)
    }

    /// Makes room in a GPU's pools for bytes that the program is about to allocate outside the step, such as a batch:
    /// pools that might exceed the budget are trimmed. No effect without a budget or without pools.
    pub fn make_room(&self, bytes: Bytes) {
        self.planning.room.make(bytes);
    }

    /// Number of times the pools were trimmed to stay within the budget.
    pub fn trims(&self) -> u64 {
        self.planning.room.trims()
    }

    /// Like [`set_budget`](Self::set_budget), for any kind of plan and an optional budget, but on this rank alone, if there
    /// are several: what they have decided together stays. The batch of the next step is counted in addition to the bytes
    /// in use now.
    ///
    /// # Errors
    ///
    /// See [`within`](crate::record::Recorded::within); after an error the step is unchanged.
    pub fn plan_again(
        &mut self,
        budget: Option<Bytes>,
        wanted: impl Into<Wanted>,
    ) -> Result<(), RecordError> {
        self.plan_in(How::InRun, budget, wanted.into(), true)
    }

    /// Like [`plan_again`](Self::plan_again), in any way that its options allow; all ranks call it together.
    ///
    /// # Errors
    ///
    /// See [`plan_again`](Self::plan_again); the smallest budget is that of all ways.
    pub fn plan_anew(
        &mut self,
        budget: Option<Bytes>,
        wanted: impl Into<Wanted>,
    ) -> Result<(), RecordError> {
        self.plan_in(How::Together, budget, wanted.into(), true)
    }

    /// The smallest budget for which there is a plan in any way, on this rank; the step is unchanged.
    pub fn smallest_budget(&mut self) -> Option<Bytes> {
        match self.plan_in(How::Alone, Some(Bytes::ZERO), Planner::Auto.into(), true) {
            Err(RecordError::Infeasible { smallest, .. }) => Some(smallest),
            _ => None,
        }
    }

    /// By how many bytes memory in use exceeded the plan, if a step was planned again for that reason since the last
    /// call.
    pub fn take_growth(&self) -> Option<Bytes> {
        self.state.borrow_mut().grown.take()
    }

    /// From the next plan on, all tensors stay on the device.
    pub fn forbid_offload(&mut self) {
        self.planning.options.link = None;
    }
}
