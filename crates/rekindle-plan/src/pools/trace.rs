//! The buffers that a schedule makes and frees, in order.
//!
//! What each action holds is the simulator's rule: [`Holdings`] says what is freed, the chain says how large it is. With
//! one byte of alignment the most bytes in use are the simulated peak. Within an action the order is that in which a
//! stage computes: temporary bytes, what a graph saves besides its output, the output, gradients of parameters; then all
//! that the action frees is freed.
//!
//! | what | buffers |
//! |---|---|
//! | parameters | one a stage, long-lived |
//! | other fixed bytes | one |
//! | the input | one |
//! | optimizer state | each stage's share, by g_i, as buffers as large as g_i and a rest |
//! | a_{i+1}, y_i, g_i | one each |
//! | X_{i+1} | the output, and buffers as large as it and a rest for what is saved besides |
//! | temporary bytes | one an action |

use super::PoolError;
use super::allocator::{Buffer, Pools, TooLarge};
use crate::action::{Action, StageId};
use crate::bytes::Bytes;
use crate::chain::Chain;
use crate::holdings::Holdings;
use crate::schedule::Schedule;
use crate::simulator::{Violation, recorded_way};

/// A share of bytes is at most this many equal buffers and a rest: a large graph of a stage with a tiny output is
/// not made of millions of tiny buffers.
const MOST_PIECES: u64 = 64;

/// Runs two steps, and returns what the pools had taken after each action.
pub(super) fn two_steps(
    chain: &Chain,
    schedule: &Schedule,
    pools: &mut Pools,
) -> Result<Vec<Bytes>, PoolError> {
    let stages = chain.stages.len();
    if schedule.stages() != stages {
        return Err(PoolError::Violation(Violation::OtherLength {
            schedule: schedule.stages(),
            chain: stages,
        }));
    }
    // Never freed.
    let _resident = resident(chain, pools)?;
    let mut taken = Vec::with_capacity(2 * schedule.actions().len());
    for _ in 0..2 {
        let mut step = Step::new(chain, pools);
        for (index, &action) in schedule.actions().iter().enumerate() {
            step.perform(index, action)?;
            taken.push(step.pools.reserved());
        }
        step.end();
    }
    Ok(taken)
}

/// What is there from the first step on: fixed bytes, the input, the optimizer's state.
fn resident(chain: &Chain, pools: &mut Pools) -> Result<Vec<Buffer>, TooLarge> {
    let mut held = Vec::new();
    for stage in &chain.stages {
        held.push(pools.reserve_long_lived(stage.param_bytes));
    }
    let parameters = chain.stages.iter().map(|stage| stage.param_bytes).sum();
    held.push(pools.reserve(chain.fixed_bytes - parameters)?);
    held.push(pools.reserve(chain.input_bytes)?);
    for (share, grad) in state_shares(chain) {
        held.extend(in_pieces(pools, share, grad)?);
    }
    Ok(held)
}

/// Each stage's share of the optimizer's state beside its g_i, in proportion to g_i. One share where no stage has any.
fn state_shares(chain: &Chain) -> Vec<(Bytes, Bytes)> {
    let state = chain.optimizer.state_bytes;
    let all: Bytes = chain.stages.iter().map(|stage| stage.grad_bytes).sum();
    if all == Bytes::ZERO {
        return vec![(state, state)];
    }
    // Differences of rounded sums, so that the shares add up to the state.
    let up_to = |grads: Bytes| {
        let share = u128::from(state.0) * u128::from(grads.0) / u128::from(all.0);
        Bytes(u64::try_from(share).unwrap_or(u64::MAX))
    };
    let mut grads = Bytes::ZERO;
    let mut shares = Vec::with_capacity(chain.stages.len());
    for stage in &chain.stages {
        let before = up_to(grads);
        grads += stage.grad_bytes;
        shares.push((up_to(grads) - before, stage.grad_bytes));
    }
    shares
}

/// Buffers as large as `piece`, and one for the rest.
fn in_pieces(pools: &mut Pools, total: Bytes, piece: Bytes) -> Result<Vec<Buffer>, TooLarge> {
    let count = total.0.checked_div(piece.0).unwrap_or(0).min(MOST_PIECES);
    let mut buffers = Vec::new();
    for _ in 0..count {
        buffers.push(pools.reserve(piece)?);
    }
    let rest = total - Bytes(count * piece.0);
    if rest > Bytes::ZERO {
        buffers.push(pools.reserve(rest)?);
    }
    Ok(buffers)
}

/// One step, and the buffers that it holds.
struct Step<'a> {
    chain: &'a Chain,
    pools: &'a mut Pools,
    holdings: Holdings,
    /// `activations[i]`: the stand-alone a_i. Index 0 stays empty: the input is resident.
    activations: Vec<Option<Buffer>>,
    /// `graphs[i]`: X_{i+1}, and the temporary bytes of its backward.
    graphs: Vec<(Vec<Buffer>, Bytes)>,
    gradient: Option<Buffer>,
    parameter_gradients: Vec<Buffer>,
}

impl<'a> Step<'a> {
    fn new(chain: &'a Chain, pools: &'a mut Pools) -> Step<'a> {
        let stages = chain.stages.len();
        Step {
            chain,
            pools,
            holdings: Holdings::new(stages),
            activations: (0..=stages).map(|_| None).collect(),
            graphs: (0..stages).map(|_| (Vec::new(), Bytes::ZERO)).collect(),
            gradient: None,
            parameter_gradients: Vec::new(),
        }
    }

    fn perform(&mut self, index: usize, action: Action) -> Result<(), PoolError> {
        let effect = self
            .holdings
            .apply(action)
            .map_err(|rule| Violation::Broken {
                index,
                action,
                rule,
            })?;
        let mut freed = Vec::new();
        match action {
            Action::Forward(StageId(i)) | Action::ForwardKeep(StageId(i)) => {
                let stage = &self.chain.stages[i];
                freed.push(self.pools.reserve(stage.forward_temp_bytes)?);
                self.activations[i + 1] = Some(self.pools.reserve(stage.output_bytes)?);
                if effect.freed_input {
                    freed.extend(self.activations[i].take());
                }
            }
            Action::ForwardTracked {
                stage: StageId(i),
                alternative,
            } => {
                let stage = &self.chain.stages[i];
                let way = recorded_way(self.chain, index, StageId(i), alternative)?;
                freed.push(self.pools.reserve(way.tracked_temp_bytes)?);
                // A chain as one schedule meets it may count an output elsewhere than in the graph.
                let output = stage.output_bytes.min(way.saved_bytes);
                let mut graph = in_pieces(self.pools, way.saved_bytes - output, output)?;
                graph.push(self.pools.reserve(output)?);
                self.graphs[i] = (graph, way.backward_temp_bytes);
            }
            Action::Loss => {
                let stages = self.chain.stages.len();
                let forward = self.pools.reserve(self.chain.loss.forward_temp_bytes)?;
                self.pools.free(forward);
                freed.push(self.pools.reserve(self.chain.loss.backward_temp_bytes)?);
                self.gradient = Some(self.pools.reserve(self.chain.gradient_bytes(stages))?);
                if effect.freed_input {
                    freed.extend(self.activations[stages].take());
                }
            }
            Action::Backward(StageId(i)) => {
                let (graph, temporary) = std::mem::take(&mut self.graphs[i]);
                freed.push(self.pools.reserve(temporary)?);
                let gradient = self.pools.reserve(self.chain.gradient_bytes(i))?;
                let grads = self.pools.reserve(self.chain.stages[i].grad_bytes)?;
                self.parameter_gradients.push(grads);
                freed.extend(self.gradient.replace(gradient));
                freed.extend(graph);
                if effect.freed_input {
                    freed.extend(self.activations[i].take());
                }
            }
            Action::Optimize => {
                freed.push(self.pools.reserve(self.chain.optimizer.temp_bytes)?);
                freed.append(&mut self.parameter_gradients);
            }
        }
        for buffer in freed {
            self.pools.free(buffer);
        }
        Ok(())
    }

    /// Frees all that the schedule left.
    fn end(self) {
        let left = self.activations.into_iter().flatten();
        let left = left.chain(self.graphs.into_iter().flat_map(|(graph, _)| graph));
        for buffer in left.chain(self.gradient).chain(self.parameter_gradients) {
            self.pools.free(buffer);
        }
    }
}
