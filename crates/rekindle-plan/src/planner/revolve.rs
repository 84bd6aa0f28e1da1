//! `revolve`: binomial schedules for equal stages.
//!
//! Griewank & Walther 2000 (Algorithm 799, ACM TOMS 26(1)); also treeverse (Griewank 1992). With s stored states, the
//! chain's input among them, and beta(s,r) = C(s+r, s), a chain of l <= beta(s,r) equal steps can be reversed with no
//! step run forward more than r times before its own recording, and the least number of untracked forwards is
//! ```text
//! t(l,s) = min over 0<h<l of h + t(l-h, s-1) + t(h, s) = r l - beta(s+1, r-1),   r the least with l <= beta(s,r)
//! ```
//! Every h with beta(s,r-2) <= h <= beta(s,r-1) and beta(s-1,r-1) <= l-h <= beta(s-1,r) is optimal; this module uses h
//! = min( beta(s,r-1), l - beta(s-1,r-1) ), in O(r) each. Each stage is recorded alone, so two graphs never exist at
//! the same time. The schedule is optimal for equal stages whose graph is no larger than a stored state; it does not
//! take bytes and seconds into account. Cost: O(actions).

use super::PlanError;
use super::persistent::{Choice, emit};
use crate::schedule::Schedule;

/// Maximum number of actions of a schedule: about 240 MB.
const MOST_ACTIONS: usize = 10_000_000;

/// The binomial schedule of `stages` equal stages with `snapshots` stored states, the chain's input among them.
///
/// # Errors
/// [`PlanError::NoStages`] for zero stages, [`PlanError::Snapshots`] for zero snapshots or more than stages,
/// [`PlanError::TooManyActions`] if there are so few that the schedule would not fit in memory.
pub fn revolve(stages: usize, snapshots: usize) -> Result<Schedule, PlanError> {
    can_revolve(stages, snapshots)?;
    emit(stages, snapshots, |s, t, &snapshots| {
        let steps = t.min(stages - 1) + 1 - s;
        if steps == 1 {
            return Choice::Track {
                alternative: 0,
                rest: snapshots,
            };
        }
        let ahead = if snapshots == 1 {
            steps - 1
        } else {
            first_part(steps, snapshots)
        };
        Choice::Split {
            j: s + ahead,
            right: snapshots.saturating_sub(1).max(1),
            left: snapshots,
        }
    })
}

/// Whether there is such a schedule, of no more than [`MOST_ACTIONS`].
pub(super) fn can_revolve(stages: usize, snapshots: usize) -> Result<(), PlanError> {
    if stages == 0 {
        return Err(PlanError::NoStages);
    }
    if snapshots == 0 || snapshots > stages {
        return Err(PlanError::Snapshots { snapshots, stages });
    }
    // Add one tracked forward and one backward pass per stage, the loss and the optimizer.
    let actions = forwards(stages, snapshots) + 2 * stages as u128 + 2;
    if actions > MOST_ACTIONS as u128 {
        return Err(PlanError::TooManyActions {
            snapshots,
            stages,
            actions,
            most: MOST_ACTIONS,
        });
    }
    Ok(())
}

/// t(l,s).
fn forwards(steps: usize, snapshots: usize) -> u128 {
    let steps_wide = steps as u128;
    if snapshots == 1 {
        return steps_wide * (steps_wide - 1) / 2;
    }
    let mut repetitions = 0;
    while beta(snapshots, repetitions) < steps {
        repetitions += 1;
    }
    match repetitions.checked_sub(1) {
        // beta(s+1, r-1) may be large, but no larger than r l.
        Some(fewer) => repetitions as u128 * steps_wide - beta(snapshots + 1, fewer) as u128,
        None => 0,
    }
}

/// beta(s,r) = C(s+r, s): the longest chain that s stored states reverse with r repetitions. Stops at `usize::MAX`.
fn beta(snapshots: usize, repetitions: usize) -> usize {
    let mut value = 1_u128;
    for k in 1..=repetitions.min(snapshots) {
        value = value * (repetitions.max(snapshots) + k) as u128 / k as u128;
        if value > usize::MAX as u128 {
            return usize::MAX;
        }
    }
    value as usize
}

/// h: how far to go before the next state is stored, for at least two steps and two snapshots.
fn first_part(steps: usize, snapshots: usize) -> usize {
    let mut repetitions = 1;
    while beta(snapshots, repetitions) < steps {
        repetitions += 1;
    }
    beta(snapshots, repetitions - 1).min(steps - beta(snapshots - 1, repetitions - 1))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::{beta, forwards, revolve};
    use crate::action::Action;
    use crate::planner::PlanError;

    fn advances(stages: usize, snapshots: usize) -> usize {
        let schedule = revolve(stages, snapshots).unwrap();
        schedule
            .actions()
            .iter()
            .filter(|a| matches!(a, Action::Forward(_) | Action::ForwardKeep(_)))
            .count()
    }

    /// Griewank & Walther 2000, section 2: the recurrence itself, without binomials.
    #[test]
    fn forwards_are_as_few_as_the_recurrence_allows() {
        const LONGEST: usize = 60;
        let mut least = vec![vec![0; LONGEST + 1]; LONGEST + 1];
        for snapshots in 1..=LONGEST {
            for steps in 2..=LONGEST {
                least[snapshots][steps] = if snapshots == 1 {
                    steps * (steps - 1) / 2
                } else {
                    (1..steps)
                        .map(|h| h + least[snapshots - 1][steps - h] + least[snapshots][h])
                        .min()
                        .unwrap()
                };
            }
        }
        for (snapshots, least) in least.iter().enumerate().skip(1) {
            for (steps, &least) in least.iter().enumerate().skip(snapshots) {
                assert_eq!(
                    advances(steps, snapshots),
                    least,
                    "{steps} steps, {snapshots} snapshots"
                );
                assert_eq!(forwards(steps, snapshots), least as u128);
            }
        }
    }

    /// The closed form t(l,s) = r l - beta(s+1, r-1) for 10 steps and 3 snapshots: 2 * 10 - C(5,1) = 15.
    #[test]
    fn ten_steps_with_three_snapshots_take_fifteen_forwards() {
        assert_eq!(beta(3, 2), 10);
        assert_eq!(advances(10, 3), 15);
    }

    #[test]
    fn a_schedule_that_would_fill_the_memory_is_refused() {
        let error = revolve(100_000, 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "1 snapshot for 100000 stages make a schedule of 5000150002 actions, more than 10000000: use more snapshots"
        );
        assert!(revolve(100_000, 40).is_ok());
    }

    #[test]
    fn the_number_of_snapshots_is_checked() {
        assert_eq!(
            revolve(3, 0),
            Err(PlanError::Snapshots {
                snapshots: 0,
                stages: 3
            })
        );
        assert_eq!(
            revolve(3, 4),
            Err(PlanError::Snapshots {
                snapshots: 4,
                stages: 3
            })
        );
    }
}
