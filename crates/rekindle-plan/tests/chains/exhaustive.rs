//! `optimal` against an exhaustive search over everything that can be held.
//!
//! The search knows the actions and what they hold (the table in `schedule.rs`), not the recurrence. It keeps the one rule
//! that makes a schedule persistent: what was read and kept stays until its backward.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use proptest::prelude::*;
use rekindle_plan::{Bytes, Chain, Planner, Request};

use crate::least_time::least_time;
use crate::planned::{Refused, plain_peak, plan, smallest_peak};
use crate::support::{Shape, cases, random_chain};

/// What is held: bit i of `kept` is a stand-alone a_i (a_0 always), of `pinned` one that must stay, of `graphs` the graph
/// of stage i; `gradient` is the i of y_i, or one past the loss before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct State {
    kept: u32,
    pinned: u32,
    graphs: u32,
    gradient: usize,
}

impl State {
    fn is_recorded(self, stage: usize) -> bool {
        self.graphs >> stage & 1 == 1
    }

    fn has(self, i: usize) -> bool {
        self.kept >> i & 1 == 1 || (i > 0 && self.is_recorded(i - 1))
    }
}

/// Least time of one step within `budget`, by Dijkstra's algorithm; times in the chains here are whole numbers.
fn exhaustive(chain: &Chain, budget: u64) -> Option<u64> {
    let stages = chain.stages.len();
    let x = |i: usize| chain.activation_bytes(i).0;
    let y = |i: usize| chain.gradient_bytes(i).0;
    let resident = |state: State| {
        let mut bytes = chain.resident_bytes().0;
        for i in 0..stages {
            if state.kept >> (i + 1) & 1 == 1 {
                bytes += x(i + 1);
            }
            if state.is_recorded(i) {
                bytes += chain.stages[i].saved_bytes.0;
            }
            if i >= state.gradient {
                bytes += chain.stages[i].grad_bytes.0;
            }
        }
        if state.gradient <= stages {
            bytes + y(state.gradient)
        } else {
            bytes
        }
    };
    if chain.optimizer_peak().0 > budget {
        return None;
    }
    let start = State {
        kept: 1,
        pinned: 1,
        graphs: 0,
        gradient: stages + 1,
    };
    let mut best: HashMap<State, u64> = HashMap::from([(start, 0)]);
    let mut queue = BinaryHeap::from([Reverse((0, start))]);
    while let Some(Reverse((time, state))) = queue.pop() {
        if state.gradient == 0 {
            return Some(time + chain.optimizer.step_s.0 as u64);
        }
        if time > best[&state] {
            continue;
        }
        let held = resident(state);
        let mut go = |next: State, peak: u64, seconds: f64| {
            let time = time + seconds as u64;
            if peak <= budget && best.get(&next).is_none_or(|&known| time < known) {
                best.insert(next, time);
                queue.push(Reverse((time, next)));
            }
        };
        for (i, stage) in chain.stages.iter().enumerate() {
            if !state.has(i) || i >= state.gradient {
                continue;
            }
            let pinned = state.pinned | (state.kept & 1 << i);
            if state.kept >> (i + 1) & 1 == 0 {
                let kept = state.kept | 1 << (i + 1);
                let peak = held + x(i + 1) + stage.forward_temp_bytes.0;
                go(
                    State {
                        kept,
                        pinned,
                        ..state
                    },
                    peak,
                    stage.forward_s.0,
                );
                if (state.kept & !state.pinned) >> i & 1 == 1 {
                    go(
                        State {
                            kept: kept & !(1 << i),
                            ..state
                        },
                        peak,
                        stage.forward_s.0,
                    );
                }
            }
            if !state.is_recorded(i) {
                let next = State {
                    graphs: state.graphs | 1 << i,
                    pinned,
                    ..state
                };
                let peak = held + stage.saved_bytes.0 + stage.tracked_temp_bytes.0;
                go(next, peak, stage.forward_s.0);
            }
            if state.gradient == i + 1 && state.is_recorded(i) {
                let mut next = State {
                    graphs: state.graphs & !(1 << i),
                    gradient: i,
                    ..state
                };
                if i > 0 {
                    next.kept &= !(1 << i);
                    next.pinned &= !(1 << i);
                }
                let peak = held + y(i) + stage.grad_bytes.0 + stage.backward_temp_bytes.0;
                go(next, peak, stage.backward_s.0);
            }
        }
        if state.gradient == stages + 1 && state.has(stages) {
            let peak = held
                + chain
                    .loss
                    .forward_temp_bytes
                    .0
                    .max(y(stages) + chain.loss.backward_temp_bytes.0);
            let next = State {
                kept: state.kept & !(1 << stages),
                gradient: stages,
                ..state
            };
            go(next, peak, chain.loss.forward_s.0 + chain.loss.backward_s.0);
        }
    }
    None
}

fn planned(chain: &Chain, budget: u64) -> Option<u64> {
    let request = Request::of(Planner::Optimal, Some(Bytes(budget)));
    match plan(chain, &request) {
        Ok(plan) => {
            assert!(plan.peak <= Bytes(budget));
            Some(plan.step.0 as u64)
        }
        Err(Refused::Infeasible { smallest, .. }) => {
            assert!(Bytes(budget) < smallest);
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// Budgets from just below the smallest peak to just above the plain one.
fn budgets(chain: &Chain) -> Vec<u64> {
    let smallest = smallest_peak(chain).0;
    let plain = plain_peak(chain).0;
    let mut budgets: Vec<u64> = (0..=6)
        .map(|k| smallest + plain.saturating_sub(smallest) * k / 6)
        .collect();
    budgets.extend([smallest.saturating_sub(1), smallest + 1, smallest + 3]);
    budgets
}

proptest! {
    #![proptest_config(cases(30))]

    /// With F = f no schedule of any form is faster, with parameter gradients too.
    #[test]
    fn no_schedule_is_faster(
        chain in random_chain(Shape { stages: 6, unit: 1, grads: true, tracked_temps: false })
    ) {
        for budget in budgets(&chain) {
            prop_assert_eq!(planned(&chain, budget), exhaustive(&chain, budget), "budget {}", budget);
        }
    }

    /// With F unlike f a better schedule of another form is possible, though rare: the search may win, never lose.
    #[test]
    fn the_search_never_loses(
        chain in random_chain(Shape { stages: 5, unit: 1, grads: true, tracked_temps: true })
    ) {
        for budget in budgets(&chain) {
            let searched = exhaustive(&chain, budget);
            if let Some(planned) = planned(&chain, budget) {
                let searched = searched.unwrap();
                prop_assert!(searched <= planned, "budget {}: {} > {}", budget, searched, planned);
                prop_assert!(least_time(&chain, Bytes(budget)).0 <= searched as f64);
            }
        }
    }
}
