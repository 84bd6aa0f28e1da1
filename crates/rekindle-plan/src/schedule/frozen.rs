//! A schedule for a chain whose first stages have nothing to train.
//!
//! No gradient is needed below the first stage that trains, so the backward passes there are not needed either, nor the
//! forwards, graphs and kept activations that only they use. From the first stage that trains upwards nothing changes.
//!
//! A *span* is a part of the schedule during which an activation of the frozen part is held, stand-alone or inside a
//! graph. One pass over the actions finds the spans; a second one, from the end to the start, finds their readers. A
//! span with readers is made by the action that starts it and freed by its last reader; it needs no graph. Cost:
//! O(actions).

use super::Schedule;
use crate::action::{Action, StageId};
use crate::holdings::Holdings;

/// The spans of the frozen part that an action of the whole schedule reads and starts.
#[derive(Clone, Copy)]
struct Touched {
    /// The span of its input, if it has one.
    input: Option<usize>,
    /// The span that it starts.
    starts: Option<usize>,
}

impl Schedule {
    /// The remaining actions if stages 0 to `frozen - 1` have nothing to train and the input requires no gradient: the
    /// loss and the actions of the other stages, with the actions that they need, up to the backward pass of stage
    /// `frozen`. `optimize` is left out; with `frozen` 0 all other actions remain.
    ///
    /// Frozen stages are not recorded, activations that are not read again are not kept, and activations that are never
    /// read are not computed.
    pub fn without_frozen(&self, frozen: usize) -> Vec<Action> {
        let actions = self.until(frozen);
        let (touched, spans) = self.spans(frozen, actions);
        let mut read_later = vec![false; spans];
        // Records a reader, and returns whether a later one is known.
        let read = |read_later: &mut [bool], span: Option<usize>| {
            span.is_some_and(|span| std::mem::replace(&mut read_later[span], true))
        };
        let mut left = Vec::with_capacity(actions.len());
        for (&action, touched) in actions.iter().zip(touched).rev() {
            let of_frozen = action.stage().is_some_and(|stage| stage.0 < frozen);
            let made_for_nobody = touched.starts.is_none_or(|span| !read_later[span]);
            if of_frozen && made_for_nobody {
                continue;
            }
            let read_again = read(&mut read_later, touched.input);
            left.push(match action {
                Action::ForwardKeep(stage) | Action::ForwardTracked { stage, .. } if of_frozen => {
                    match read_again {
                        true => Action::ForwardKeep(stage),
                        false => Action::Forward(stage),
                    }
                }
                // In the whole schedule a graph holds the input.
                Action::Forward(stage) if read_again => Action::ForwardKeep(stage),
                _ => action,
            });
        }
        left.reverse();
        left
    }

    /// The actions up to the last one that a chain with `frozen` frozen stages needs.
    fn until(&self, frozen: usize) -> &[Action] {
        let last = match frozen {
            0 => {
                return self
                    .actions
                    .strip_suffix(&[Action::Optimize])
                    .unwrap_or(&self.actions);
            }
            _ if frozen < self.stages => Action::Backward(StageId(frozen)),
            _ => Action::Loss,
        };
        let place = self.actions.iter().position(|&action| action == last);
        &self.actions[..place.map_or(0, |place| place + 1)]
    }

    /// The spans of a_1 to a_`frozen` that each of these actions reads and starts, and the number of spans.
    fn spans(&self, frozen: usize, actions: &[Action]) -> (Vec<Touched>, usize) {
        let mut holdings = Holdings::new(self.stages);
        // The span that each of the activations is in.
        let mut current = vec![None; frozen.min(self.stages) + 1];
        let mut spans = 0;
        let mut touched = Vec::with_capacity(actions.len());
        for &action in actions {
            let input = match action {
                Action::Loss => self.stages,
                _ => action.stage().map_or(0, |StageId(stage)| stage),
            };
            let of_input = current.get(input).copied().flatten();
            if holdings.apply(action).is_err() {
                unreachable!("a schedule's actions keep the rules");
            }
            let mut starts = None;
            // a_0 is always held.
            for activation in [input, input + 1]
                .into_iter()
                .filter(|&activation| activation > 0)
            {
                let Some(span) = current.get_mut(activation) else {
                    continue;
                };
                if !holdings.holds(activation) {
                    *span = None;
                } else if span.is_none() {
                    *span = Some(spans);
                    starts = Some(spans);
                    spans += 1;
                }
            }
            touched.push(Touched {
                input: of_input,
                starts,
            });
        }
        (touched, spans)
    }
}
