//! The ways in which a step is planned, and the one rule by which one is chosen.
//!
//! Ways are tried in order, until every rank has a plan in the same one: a whole optimizer's state first, with updates after
//! the step, then in the backward pass, each if it is allowed; then a sharded state, likewise.
//!
//! If there is a link, it is up to each rank's plan what goes to the host: tensors of the step, as a planner decides, and the
//! optimizer's state between updates. With a state of S bytes on the host, the step has S bytes more for everything
//! else, and takes m(S) longer. No plan with it is faster than P + m(S), where P is the plain step's time. So the state
//! stays on the device unless a plan with it there takes longer, or does not fit; then plans are made with
//!
//! 1. S = L, what the plain step lacks of the budget: that plan is the plain step, at P + m(L), if there is so much state;
//! 2. while nothing fits: L and the largest state, which is on the device for its update; then all state;
//! 3. S = L/2 and L/4, until that is no longer faster: recomputing the cheapest tensors may take less time than moving bytes;
//!
//! and the fastest of all is taken.

use std::{rc::Rc, sync::Arc};

use rekindle_plan::{Bytes, Planner};

use super::{
    RecordError,
    agreement::first_short,
    measured::MeasuredRecording,
    optimizer_state::{OnHost, OptimizerState, ShardedBecause, StateChoice},
    options::{Now, Planning, Way, without_reserve},
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
        let (allowed, way) = (self.options.updates, &self.way);
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
        made_fastest(&planning, now, measured)
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
        let own = match made(way.clone()) {
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
            way.on_host = own.way.on_host;
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

/// A plan, with what it is made for.
type Made<A> = Result<(Planning, PlannedRecording<A>), RecordError>;

/// A plan with this part of the optimizer's state on the host. One plan at a time: it holds what the next is made from.
fn made<A>(
    planning: &Planning,
    on_host: Option<Arc<OnHost>>,
    now: Now,
    measured: &mut Rc<MeasuredRecording<A>>,
) -> Made<A> {
    let mut planning = planning.clone();
    planning.way.on_host = on_host;
    measured.update_as(&planning);
    planned(&planning, now, measured.clone()).map(|plan| (planning, plan))
}

/// The fastest plan of one way, with the optimizer's state on the device or partly on the host.
fn made_fastest<A>(
    planning: &Planning,
    now: Now,
    measured: &mut Rc<MeasuredRecording<A>>,
) -> Made<A> {
    let mut last = made(planning, None, now, measured);
    let updates = planning.updates();
    let (budget, link) = (planning.budget, planning.options.link);
    // On the CPU the budget bounds the host's memory.
    let movable = updates.tensors > 0 && !planning.on_host;
    let (Some(budget), Some(link), true) = (budget, link, movable) else {
        return last;
    };
    let time = |own: &Made<A>| match own {
        Ok((_, plan)) => Ok(Some(plan.numbers.predicted_time)),
        Err(RecordError::Infeasible { .. }) => Ok(None),
        Err(error) => Err(error.clone()),
    };
    let (mut best, mut best_on_host, mut last_on_host) = (time(&last)?, None, None);
    let of_plain = |(_, plan): &(_, PlannedRecording<A>)| {
        let numbers = &plan.numbers;
        (numbers.plain_peak, numbers.plain_time)
    };
    let (plain_peak, plain_time) = match &last {
        Ok(plan) => of_plain(plan),
        Err(_) => {
            let unbounded = planning.with_budget(None, Planner::None.into());
            of_plain(&made(&unbounded, None, now, measured)?)
        }
    };
    let lacking = plain_peak - without_reserve(budget, planning.wanted.reserve());
    let [half, quarter] = [2, 4].map(|parts| Bytes(lacking.0 / parts));
    let largest = updates.on_host(Bytes(1), &link, &measured.recording);
    let more = lacking + largest.map_or(Bytes::ZERO, |one| one.bytes);
    for bytes in [lacking, more, Bytes::MAX, half, quarter] {
        // More than is lacking where nothing fits, and less where something does.
        if bytes != lacking && best.is_some() == (bytes > lacking) {
            continue;
        }
        let on_host = updates.on_host(bytes, &link, &measured.recording);
        let may = |one: &OnHost| best.is_none_or(|best| plain_time + one.seconds < best);
        let Some(on_host) = on_host.filter(may).map(Arc::new) else {
            continue;
        };
        if last_on_host.as_ref() == Some(&on_host) {
            continue;
        }
        drop(last);
        last = made(planning, Some(on_host.clone()), now, measured);
        last_on_host = Some(on_host);
        let own = time(&last)?;
        if own.is_some_and(|own| best.is_none_or(|best| own < best)) {
            (best, best_on_host) = (own, last_on_host.clone());
        } else if best_on_host.is_some() {
            break;
        }
    }
    if best.is_none() || best_on_host == last_on_host {
        return last;
    }
    drop(last);
    made(planning, best_on_host, now, measured)
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
