//! The ways in which a step is planned, and the one rule by which one is chosen.
//!
//! Ways are tried in order, until every rank has a plan in the same one: a whole optimizer's state first, with updates after
//! the step, then in the backward pass, each if it is allowed; then a sharded state, likewise. Whether tensors go to the host is
//! up to each plan, if there is a link.

use std::rc::Rc;

use rekindle_plan::Bytes;

use super::{
    RecordError,
    agreement::first_short,
    measured::MeasuredRecording,
    optimizer_state::{OptimizerState, ShardedBecause, StateChoice},
    options::{Now, Planning, Way},
    planned::{PlannedRecording, planned},
    ranks::StepRanks,
    update::{InBackwardBecause, Update, Updates},
};

/// In which ways a step is planned, and by whom.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// In those that options allow, by all ranks together.
    Together,
    /// In the same ones, by this rank alone.
    Alone,
    /// By this rank alone during a run, of which nothing before it is a part: the state that ranks have chosen together
    /// stays, and with a sharded one, or without a budget, so does the update.
    InRun,
}

impl Planning {
    /// The updates and the states that are tried: each update with the first of the states, then with the next.
    fn ways(&self, how: How) -> (Updates, Vec<OptimizerState>) {
        let within_a_budget = self.budget.is_some();
        let (allowed, way) = (self.options.updates, self.way);
        let states = match self.options.program.state {
            _ if how == How::InRun => {
                let stays = way.state == OptimizerState::Sharded || !within_a_budget;
                let updates = if stays {
                    Updates::One(way.update)
                } else {
                    allowed
                };
                return (updates, vec![way.state]);
            }
            choice if self.shards.is_none() || !choice.may_shard(within_a_budget) => {
                vec![OptimizerState::Whole]
            }
            StateChoice::Auto => vec![OptimizerState::Whole, OptimizerState::Sharded],
            StateChoice::Whole | StateChoice::Sharded => vec![OptimizerState::Sharded],
        };
        (allowed, states)
    }
}

/// The plan that is chosen of all ways: the first that every rank has.
///
/// # Errors
///
/// If there is none, with the smallest budget for which any of them gives one.
pub(super) fn planned_in<A>(
    how: How,
    planning: &Planning,
    now: Now,
    measured: &mut Rc<MeasuredRecording<A>>,
    ranks: Option<&StepRanks>,
) -> Result<(Planning, PlannedRecording<A>), RecordError> {
    // A budget that was exceeded is refused anyway, and a plan for it takes long.
    let budget = planning.budget.map(|asked| asked.max(planning.until_now));
    let mut made = |way| {
        let planning = Planning {
            budget,
            way,
            ..planning.clone()
        };
        measured.update_as(&planning);
        planned(&planning, now, measured.clone()).map(|plan| (planning, plan))
    };
    let (mut least, mut at) = (Bytes::MAX, None);
    let mut way = Way::default();
    let (updates, states) = planning.ways(how);
    let with_each = |&state| {
        let updates = updates.each().iter();
        updates.map(move |&update| (update, state))
    };
    let mut all = states.iter().flat_map(with_each).peekable();
    while let Some((update, state)) = all.next() {
        (way.update, way.state) = (update, state);
        let own = match made(way) {
            Err(RecordError::Infeasible {
                smallest, floor, ..
            }) => {
                if smallest < least {
                    (least, at) = (smallest, floor);
                }
                Ok(Err(smallest))
            }
            own => own.map(Ok),
        };
        let short = own.as_ref().map(|own| own.as_ref().err().copied());
        let is_last = all.peek().is_none();
        let short = match ranks.filter(|_| how == How::Together) {
            _ if is_last => None,
            Some(ranks) => first_short(&ranks.reducer, short.map_err(|_| ()))?,
            None => short.unwrap_or_default().map(|smallest| (0, smallest)),
        };
        let own = own?;
        if let Some((rank, smallest_bytes)) = short {
            way.in_backward_because = match update {
                Update::After => Some(InBackwardBecause { smallest_bytes }),
                Update::InBackward => None,
            };
            if state == OptimizerState::Whole {
                way.sharded_because = Some(ShardedBecause {
                    rank,
                    smallest_bytes,
                });
            }
            continue;
        }
        let Ok((own, plan)) = own else {
            break;
        };
        if state == OptimizerState::Whole {
            way.sharded_because = None;
        }
        if update == Update::After {
            way.in_backward_because = None;
        }
        if budget == planning.budget {
            return Ok((Planning { way, ..own }, plan));
        }
        let floor = "before the first step, while it is recorded and measured";
        (least, at) = (Bytes::ZERO, Some(floor.to_owned()));
        break;
    }
    // Another run's peak until now may be a few bytes more.
    let until_now = planning.until_now + Bytes(planning.until_now.0 / 256);
    Err(RecordError::Infeasible {
        budget: planning.budget.unwrap_or(Bytes::MAX),
        smallest: least.max(until_now),
        floor: at,
    })
}

impl<A> MeasuredRecording<A> {
    /// Updates parameters in the way of a plan.
    pub(super) fn update_as(self: &mut Rc<Self>, planning: &Planning) {
        // No plan holds it now.
        if let Some(measured) = Rc::get_mut(self) {
            measured.costs.updates = planning.updates();
            measured.recording.update = planning.way.update;
        }
    }
}
