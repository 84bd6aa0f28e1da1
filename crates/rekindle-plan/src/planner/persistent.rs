//! From the choices of a recurrence to actions.
//!
//! A persistent schedule is a tree over windows s..t of stages: a window is either split at j (forward to a_j, which is
//! stored, then the window j..t, then s..j-1), or its first stage is recorded, the window s+1..t follows inside, and
//! the stage's backward ends it. Cost: O(actions).

use crate::schedule::{Action, StageId};

/// The choice for a window, and the values passed on to the windows inside. `R` is the resource that the planner
/// counts: remaining memory, remaining checkpoints, or nothing.
pub(crate) enum Choice<R> {
    /// Record the first stage.
    Track { rest: R },
    /// Store a_j.
    Split { j: usize, right: R, left: R },
}

enum Task<R> {
    Window { s: usize, t: usize, left: R },
    Backward(usize),
}

/// The actions of the tree that `choose(s, t, left)` defines, starting from the whole chain. The loss is stage
/// `stages`; it is emitted without calling `choose`.
pub(crate) fn emit<R>(
    stages: usize,
    whole: R,
    mut choose: impl FnMut(usize, usize, &R) -> Choice<R>,
) -> Vec<Action> {
    let mut actions = Vec::with_capacity(4 * stages);
    // An explicit stack: windows nest as deep as the chain is long.
    let mut tasks = vec![Task::Window {
        s: 0,
        t: stages,
        left: whole,
    }];
    while let Some(task) = tasks.pop() {
        match task {
            Task::Backward(s) => actions.push(Action::Backward(StageId(s))),
            Task::Window { s, .. } if s == stages => actions.push(Action::Loss),
            Task::Window { s, t, left } => match choose(s, t, &left) {
                Choice::Track { rest } => {
                    actions.push(Action::Forward(StageId(s)));
                    tasks.push(Task::Backward(s));
                    if s < t {
                        tasks.push(Task::Window {
                            s: s + 1,
                            t,
                            left: rest,
                        });
                    }
                }
                Choice::Split { j, right, left } => {
                    actions.extend((s..j).map(|k| Action::Forward(StageId(k))));
                    tasks.push(Task::Window { s, t: j - 1, left });
                    tasks.push(Task::Window {
                        s: j,
                        t,
                        left: right,
                    });
                }
            },
        }
    }
    actions.push(Action::Optimize);
    actions
}
