//! Schedules: the order in which a training step passes through its stages.
//!
//! A schedule is a list of [`Action`]s; what each forward keeps follows from the list. With a_i the input of stage i,
//! a_{i+1} its output, X_{i+1} the graph that a tracked forward of stage i records (a_{i+1} lives inside it) and y_i the
//! gradient of a_i:
//!
//! | action, as [written](Schedule::written) | when | reads | leaves |
//! |---|---|---|---|
//! | `forward_tracked i` | the last forward before `backward i` | a_i or X_i | a_i and X_{i+1} |
//! | `forward_keep i` | a_i is read again before it is made again | a_i or X_i | a_i and a_{i+1} |
//! | `forward i` | otherwise | a_i or X_i | a_{i+1}; a stand-alone a_i is dropped |
//! | `loss` | | a_L or X_L | y_L; a stand-alone a_L is dropped |
//! | `backward i` | | y_{i+1}, X_{i+1}, a_i or X_i | y_i and the stage's parameter gradients; y_{i+1}, X_{i+1} and a stand-alone a_i are freed (never a_0) |
//! | `optimize` | | all parameter gradients | none of them |

use crate::action::{Action, StageId};

/// A schedule of one training step for a chain of some stages.
///
/// Planners make it so that every action finds what it reads, that the loss and the backward of every stage run once,
/// from the last stage to the first, and that the optimizer runs last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Their number, without the loss.
    stages: usize,
    actions: Vec<Action>,
}

/// What a forward keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keeps {
    /// Its output.
    Output,
    /// Its output and its input.
    Input,
    /// The graph that its backward needs.
    Graph,
}

impl Schedule {
    /// A schedule that keeps the rules above; nothing checks that.
    #[doc(hidden)]
    pub fn new(stages: usize, actions: Vec<Action>) -> Schedule {
        Schedule { stages, actions }
    }

    /// The schedule with one level of recomputation whose second and later segments start at these stages. In the forward
    /// pass each segment except the last keeps only its input. The last segment is recorded as a whole and run backward; then
    /// each earlier segment, from last to first, is recomputed, recorded as a whole and run backward. Every stage outside the
    /// last segment runs forward twice.
    #[doc(hidden)]
    pub fn single_level(stages: usize, starts: &[usize]) -> Schedule {
        let mut edges = vec![0];
        edges.extend_from_slice(starts);
        edges.push(stages);
        let mut actions = Vec::with_capacity(3 * stages + 2);
        let last = edges[edges.len() - 2];
        let forward = |i| Action::Forward(StageId(i));
        actions.extend((0..last).map(forward));
        for segment in edges.windows(2).rev() {
            let stages_of = segment[0]..segment[1];
            actions.extend(stages_of.clone().map(forward));
            if segment[1] == stages {
                actions.push(Action::Loss);
            }
            actions.extend(stages_of.rev().map(|i| Action::Backward(StageId(i))));
        }
        actions.push(Action::Optimize);
        Schedule::new(stages, actions)
    }

    /// The actions in order.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// What each action keeps, if it is a forward.
    fn keeps(&self) -> Vec<Option<Keeps>> {
        // From the end: where each stage next runs forward, if it does before its backward.
        let mut next: Vec<Option<usize>> = vec![None; self.stages];
        let mut keeps = vec![None; self.actions.len()];
        for (place, action) in self.actions.iter().enumerate().rev() {
            let &Action::Forward(StageId(i)) = action else {
                continue;
            };
            let again = next[i].replace(place);
            let made_again = i.checked_sub(1).and_then(|before| next[before]);
            keeps[place] = Some(match (again, made_again) {
                (None, _) => Keeps::Graph,
                (Some(again), Some(made)) if made < again => Keeps::Output,
                _ => Keeps::Input,
            });
        }
        keeps
    }

    /// The actions as text, which tells apart what forwards keep: `forward`, `forward_keep` or `forward_tracked`.
    pub fn written(&self) -> Vec<String> {
        let written = self.actions.iter().zip(self.keeps());
        let written = written.map(|(action, keeps)| match (action, keeps) {
            (Action::Forward(stage), Some(Keeps::Input)) => format!("forward_keep {stage}"),
            (Action::Forward(stage), Some(Keeps::Graph)) => format!("forward_tracked {stage}"),
            _ => action.to_string(),
        });
        written.collect()
    }

    /// The segments of a single-level schedule, each as its first and last stage, from the first segment to the last;
    /// `None` for a nested one. A schedule that keeps everything is one segment.
    ///
    /// Single level means: untracked forwards of all segments but the last, then each segment, from the last to
    /// the first, is recorded as a whole and run backward.
    pub fn segments(&self) -> Option<Vec<(StageId, StageId)>> {
        let mut segments: Vec<(StageId, StageId)> = Vec::new();
        let mut extending = false;
        let mut forwarded = 0;
        for (&action, keeps) in self.actions.iter().zip(self.keeps()) {
            match (action, keeps) {
                (Action::Forward(stage), Some(Keeps::Graph)) => match segments.last_mut() {
                    Some((_, last)) if extending => {
                        if stage.0 != last.0 + 1 {
                            return None;
                        }
                        *last = stage;
                    }
                    _ => {
                        segments.push((stage, stage));
                        extending = true;
                    }
                },
                (Action::Forward(stage), _) => {
                    if !segments.is_empty() || stage.0 != forwarded {
                        return None;
                    }
                    forwarded += 1;
                }
                _ => extending = false,
            }
        }
        segments.reverse();
        let tiles = segments
            .windows(2)
            .all(|pair| pair[1].0.0 == pair[0].1.0 + 1);
        let (first, last) = (segments.first()?, segments.last()?);
        let whole = first.0.0 == 0 && last.1.0 + 1 == self.stages && last.0.0 == forwarded;
        (tiles && whole).then_some(segments)
    }
}
