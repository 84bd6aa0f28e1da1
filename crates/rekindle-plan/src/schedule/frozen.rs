//! A schedule for a chain whose first stages have nothing to train.
//!
//! No gradient is wanted below the first stage that trains, so neither are the backwards there, nor the forwards and the
//! kept activations that serve only them. What is left is found by one pass from the end to the start: an action is
//! needed if a needed action reads what it makes. Cost: O(actions).

use super::Schedule;
use crate::action::{Action, StageId};

impl Schedule {
    /// What is left to do where stages 0 to `frozen - 1` have nothing to train and the input wants no gradient: the
    /// loss and every backward from stage `frozen` on, with what they need. Without `optimize`, and with `frozen` 0
    /// everything else.
    ///
    /// Every stage from `frozen` on runs forward as often as in the whole schedule. What a frozen stage records for
    /// nobody is not recorded, and what nobody reads again is not kept.
    pub fn without_frozen(&self, frozen: usize) -> Vec<Action> {
        let stages = self.stages;
        // Whether a_i, and the graph X_{i+1} of stage i, are read by an action that comes later and is needed.
        let mut reads_activation = vec![false; stages + 1];
        let mut reads_graph = vec![false; stages];
        let mut needed = Vec::with_capacity(self.actions.len());
        for &action in self.actions.iter().rev() {
            let left = match action {
                Action::Optimize => None,
                Action::Backward(StageId(i)) => (i >= frozen).then(|| {
                    reads_graph[i] = true;
                    reads_activation[i] = true;
                    action
                }),
                Action::Loss => {
                    reads_activation[stages] = true;
                    Some(action)
                }
                Action::ForwardTracked { stage, .. } if reads_graph[stage.0] => {
                    reads_graph[stage.0] = false;
                    reads_activation[stage.0 + 1] = false;
                    reads_activation[stage.0] = true;
                    Some(action)
                }
                Action::Forward(stage)
                | Action::ForwardKeep(stage)
                | Action::ForwardTracked { stage, .. } => {
                    let StageId(i) = stage;
                    std::mem::take(&mut reads_activation[i + 1]).then(|| {
                        let read_again = std::mem::replace(&mut reads_activation[i], true);
                        match action {
                            Action::Forward(_) => action,
                            _ if read_again => Action::ForwardKeep(stage),
                            _ => Action::Forward(stage),
                        }
                    })
                }
            };
            needed.extend(left);
        }
        needed.reverse();
        needed
    }
}
