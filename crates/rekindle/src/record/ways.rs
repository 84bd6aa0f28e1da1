//! The ways in which a step is planned, and the one rule by which one is chosen.
//!
//! Ways are tried in order, until every rank has a plan in the same one: a whole optimizer's state first, with updates after
//! the step, then in the backward pass, each if it is allowed; then a sharded state, likewise. Whether tensors go to the host is
//! up to each plan, if there is a link.

use std::rc::Rc;

use rekindle_plan::{Bytes, Seconds};

use super::{
    RecordError,
    agreement::first_short,
    measured::MeasuredRecording,
    optimizer_state::{OptimizerState, ShardedBecause, StateChoice},
    options::{Now, Planning},
    planned::{PlannedRecording, planned},
    ranks::StepRanks,
    update::{InBackwardBecause, Update, Updates},
};

/// A plan with updates in the backward pass is chosen for its time only if it takes at most this share of the other
/// plan's time: repeated measurements differ by some percent.
const FASTER: f64 = 0.97;

/// A way in which a step is planned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Way {
    /// When parameters are updated.
    pub update: Update,
    /// Who keeps the optimizer's state, if ranks share the step.
    pub state: OptimizerState,
}

/// The way of a plan, and why it is not an earlier one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Chosen {
    /// The way.
    pub way: Way,
    pub(super) in_backward_because: Option<InBackwardBecause>,
    pub(super) sharded_because: Option<ShardedBecause>,
}

/// A plan in one way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate<P> {
    /// The plan.
    pub plan: P,
    /// Its step's time, the update included.
    pub step: Seconds,
    /// Whether it recomputes anything.
    pub recomputes: bool,
}

/// Ways in the order in which they are tried: each update with the first of the states, then with the next.
#[derive(Debug, Clone)]
pub struct Ways {
    updates: Updates,
    states: Vec<OptimizerState>,
    /// Whether all ranks try them together.
    pub(super) together: bool,
    /// Whether they are tried during a run, of which nothing before it is a part.
    pub(super) in_run: bool,
}

impl Ways {
    /// These updates, with a whole state.
    #[must_use]
    pub fn of(updates: Updates) -> Self {
        Self {
            updates,
            states: vec![OptimizerState::Whole],
            together: false,
            in_run: false,
        }
    }

    /// Chooses a plan. `plan` returns the best plan in a way, or the smallest feasible budget if none fits; so does this
    /// function. `first_short` returns the first rank that has no plan, given what this one has; not asked of the last way.
    ///
    /// # Errors
    ///
    /// The first of `plan` and `first_short`.
    pub fn choose<P, E>(
        &self,
        mut plan: impl FnMut(Way) -> Result<Result<Candidate<P>, Bytes>, E>,
        mut first_short: impl FnMut(Result<Option<Bytes>, ()>) -> Result<Option<(usize, Bytes)>, E>,
    ) -> Result<Result<(P, Chosen), Bytes>, E> {
        let (mut chosen, mut least) = (Chosen::default(), Bytes::MAX);
        let updates = |&state| {
            let updates = self.updates.each().iter();
            updates.map(move |&update| Way { update, state })
        };
        let mut ways = self.states.iter().flat_map(updates).peekable();
        while let Some(way) = ways.next() {
            let planned = plan(way);
            let own = planned
                .as_ref()
                .map(|planned| planned.as_ref().err().copied());
            let short = match ways.peek() {
                Some(_) => first_short(own.map_err(|_| ()))?,
                None => None,
            };
            let planned = planned?;
            least = least.min(planned.as_ref().err().copied().unwrap_or(Bytes::MAX));
            if let Some((rank, smallest_bytes)) = short {
                chosen.in_backward_because = match way.update {
                    Update::After => Some(InBackwardBecause::Fits(smallest_bytes)),
                    Update::InBackward => None,
                };
                if way.state == OptimizerState::Whole {
                    chosen.sharded_because = Some(ShardedBecause {
                        rank,
                        smallest_bytes,
                    });
                }
                continue;
            }
            let Ok(own) = planned else {
                break;
            };
            chosen.way = way;
            if way.state == OptimizerState::Whole {
                chosen.sharded_because = None;
            }
            if way.update == Update::InBackward {
                return Ok(Ok((own.plan, chosen)));
            }
            chosen.in_backward_because = None;
            // Ranks that divide the state update at the same time.
            let other = Way {
                update: Update::InBackward,
                ..way
            };
            if self.updates == Updates::ToFitOrFaster
                && way.state == OptimizerState::Whole
                && own.recomputes
                && let Ok(faster) = plan(other)?
                && faster.step.0 < FASTER * own.step.0
            {
                chosen.way = other;
                chosen.in_backward_because = Some(InBackwardBecause::Faster(own.step));
                return Ok(Ok((faster.plan, chosen)));
            }
            return Ok(Ok((own.plan, chosen)));
        }
        Ok(Err(least))
    }
}

impl Planning {
    /// The ways that options allow, within a budget or without one.
    pub(super) fn ways(&self, within_a_budget: bool) -> Ways {
        let states = match self.options.state {
            choice if self.shards.is_none() || !choice.may_shard(within_a_budget) => {
                vec![OptimizerState::Whole]
            }
            StateChoice::Auto => vec![OptimizerState::Whole, OptimizerState::Sharded],
            StateChoice::Whole | StateChoice::Sharded => vec![OptimizerState::Sharded],
        };
        Ways {
            states,
            together: true,
            ..Ways::of(self.options.updates)
        }
    }

    /// Those of a plan that a rank makes alone, after the first: the state that ranks have chosen together stays, and with a
    /// sharded one, or without a budget, so does the update.
    pub(super) fn same_ways(&self, within_a_budget: bool) -> Ways {
        let Way { update, state } = self.chosen.way;
        let updates = match state == OptimizerState::Whole && within_a_budget {
            true => self.options.updates,
            false => Updates::One(update),
        };
        Ways {
            states: vec![state],
            in_run: true,
            ..Ways::of(updates)
        }
    }
}

/// The plan that is chosen of these ways.
///
/// # Errors
///
/// If there is none, with the smallest budget for which any of them gives one.
pub(super) fn planned_in<A>(
    ways: &Ways,
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
            chosen: Chosen {
                way,
                ..Chosen::default()
            },
            ..planning.clone()
        };
        measured.update_as(&planning);
        planned(&planning, now, measured.clone()).map(|plan| (planning, plan))
    };
    let (mut last, mut least, mut at) = (None, Bytes::MAX, None);
    let plan = |way| {
        // It takes memory, and shares its recording with the next.
        last = None;
        match made(way) {
            Ok((planning, plan)) => {
                let numbers = plan.in_numbers(&planning, ranks);
                let optimizer = planning.optimizer(&plan.measured.recording);
                last = Some((planning, plan));
                Ok(Ok(Candidate {
                    plan: (),
                    step: numbers.predicted_time + optimizer.step_s,
                    recomputes: numbers.repeated > 0,
                }))
            }
            Err(RecordError::Infeasible {
                smallest, floor, ..
            }) => {
                if smallest < least {
                    (least, at) = (smallest, floor);
                }
                Ok(Err(smallest))
            }
            Err(error) => Err(error),
        }
    };
    let chosen = ways.choose(plan, |own| match ranks.filter(|_| ways.together) {
        Some(ranks) => Ok(first_short(&ranks.reducer, own)?),
        None => Ok(own.unwrap_or_default().map(|smallest| (0, smallest))),
    })?;
    // Another run's peak until now may be a few bytes more.
    let until_now = planning.until_now + Bytes(planning.until_now.0 / 256);
    match chosen {
        Ok(((), chosen)) if budget == planning.budget => {
            let last = last.filter(|(planning, _)| planning.chosen.way == chosen.way);
            let (planning, plan) = last.map_or_else(|| made(chosen.way), Ok)?;
            Ok((Planning { chosen, ..planning }, plan))
        }
        refused => Err(RecordError::Infeasible {
            budget: planning.budget.unwrap_or(Bytes::MAX),
            floor: match refused {
                Ok(_) => Some("before the first step, while it is recorded and measured".into()),
                Err(_) => at,
            },
            smallest: refused.err().unwrap_or_default().max(until_now),
        }),
    }
}

impl<A> MeasuredRecording<A> {
    /// Updates parameters in the way of a plan.
    pub(super) fn update_as(self: &mut Rc<Self>, planning: &Planning) {
        // No plan holds it now.
        if let Some(measured) = Rc::get_mut(self) {
            measured.costs.updates = planning.updates();
            measured.recording.update = planning.chosen.way.update;
        }
    }
}
