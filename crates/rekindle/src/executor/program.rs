//! A schedule compiled for the executor: which tracked stages form one graph, and which backward pass runs through it.
//!
//! Every `backward` call in burn has a cost (it walks all live graphs), so consecutive tracked stages are recorded as
//! one graph, a *piece*, with one backward pass. A piece ends where the next stage is not tracked directly after, where
//! the next stage's backward pass does not come directly before, or where another action reads the activation between
//! the two. A stage that is tracked by an alternative is always a separate piece: inside a larger one, burn's balanced
//! strategy would also recompute results of neighbouring stages, which measurements of single stages do not cover.

use std::ops::RangeInclusive;

use rekindle_plan::{Action, Schedule, StageId};

/// An instruction of the executor, for one or more actions of the schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ModuleInstruction {
    /// Run one stage without a graph; the input is dropped unless `keep_input`.
    Forward { stage: usize, keep_input: bool },
    /// Run these stages as one graph, by burn's balanced strategy if `balanced`.
    Track {
        stages: RangeInclusive<usize>,
        balanced: bool,
    },
    /// Compute the loss, on the graph of the last piece or on a separate graph.
    Loss { joins_piece: bool },
    /// Run one backward pass through the piece of these stages.
    Backward { stages: RangeInclusive<usize> },
}

/// The instructions of one step. The update (`optimize`) is left to the caller.
#[derive(Debug, Clone)]
pub(crate) struct ModuleProgram {
    pub(super) instructions: Vec<ModuleInstruction>,
}

impl ModuleProgram {
    pub(crate) fn new(schedule: &Schedule) -> Self {
        Self::of(schedule.actions(), schedule.stages())
    }

    /// The program of a schedule's actions, or of what is [left](Schedule::without_frozen) of them.
    pub(super) fn of(actions: &[Action], stages: usize) -> Self {
        let mut instructions = Vec::new();
        let mut next = 0;
        while next < actions.len() {
            let (instruction, taken) = match actions[next] {
                Action::Forward(StageId(stage)) => (
                    Some(ModuleInstruction::Forward {
                        stage,
                        keep_input: stage == 0,
                    }),
                    1,
                ),
                Action::ForwardKeep(StageId(stage)) => (
                    Some(ModuleInstruction::Forward {
                        stage,
                        keep_input: true,
                    }),
                    1,
                ),
                Action::ForwardTracked {
                    stage: StageId(first),
                    alternative,
                } => {
                    let balanced = alternative > 0;
                    let last = if balanced {
                        first
                    } else {
                        end_of_piece(actions, next, first)
                    };
                    (
                        Some(ModuleInstruction::Track {
                            stages: first..=last,
                            balanced,
                        }),
                        last - first + 1,
                    )
                }
                Action::Loss => (
                    Some(ModuleInstruction::Loss {
                        joins_piece: loss_joins(actions, next, stages - 1),
                    }),
                    1,
                ),
                Action::Backward(StageId(last)) => {
                    let first = piece_that_ends_at(&instructions, last);
                    (
                        Some(ModuleInstruction::Backward {
                            stages: first..=last,
                        }),
                        last - first + 1,
                    )
                }
                Action::Optimize => (None, 1),
            };
            instructions.extend(instruction);
            next += taken;
        }
        Self { instructions }
    }

    /// Number of backward calls.
    pub(crate) fn backward_calls(&self) -> usize {
        let calls = |instruction: &&ModuleInstruction| {
            matches!(
                instruction,
                ModuleInstruction::Backward { .. } | ModuleInstruction::Loss { joins_piece: false }
            )
        };
        self.instructions.iter().filter(calls).count()
    }

    /// The outputs of tracked stages that the machine drops early.
    pub(crate) fn output_borders(&self) -> Vec<OutputBorder> {
        let mut borders = Vec::new();
        for (index, instruction) in self.instructions.iter().enumerate() {
            let ModuleInstruction::Track { stages, balanced } = instruction else {
                continue;
            };
            let border = |stage, inside| OutputBorder {
                stage,
                alternative: usize::from(*balanced),
                inside,
            };
            borders.extend((*stages.start()..*stages.end()).map(|stage| border(stage, true)));
            let next = self.instructions.get(index + 1);
            if matches!(next, Some(ModuleInstruction::Backward { stages: swept }) if swept == stages)
            {
                borders.push(border(*stages.end(), false));
            }
        }
        borders
    }
}

/// An output that the machine itself does not hold until the end of the stage's backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputBorder {
    pub(crate) stage: usize,
    /// The alternative by which the stage is recorded.
    pub(crate) alternative: usize,
    /// Whether the output is inside a piece, where only graphs hold it. Otherwise it is the end of a piece whose
    /// backward pass follows at once, and it is dropped when that starts.
    pub(crate) inside: bool,
}

/// The last stage of the piece that starts with the tracked forward of `first` at action `start`.
fn end_of_piece(actions: &[Action], start: usize, first: usize) -> usize {
    let mut last = first;
    loop {
        let next = last + 1;
        let at = start + (next - first);
        let follows = matches!(
            actions.get(at),
            Some(Action::ForwardTracked { stage, alternative: 0 }) if stage.0 == next
        );
        if !follows || !swept_together(actions, at, next) {
            return last;
        }
        last = next;
    }
}

/// Whether the backward passes of stage `upper`, tracked at action `at`, and of the stage below it are adjacent, with
/// no other reader of the activation between the two stages before that.
fn swept_together(actions: &[Action], at: usize, upper: usize) -> bool {
    let after = &actions[at + 1..];
    let Some(sweep) = after
        .iter()
        .position(|action| matches!(action, Action::Backward(stage) if stage.0 == upper))
    else {
        return false;
    };
    let read_between = after[..sweep].iter().any(|action| {
        matches!(action, Action::Forward(stage) | Action::ForwardKeep(stage) if stage.0 == upper)
    });
    let adjacent =
        matches!(after.get(sweep + 1), Some(Action::Backward(stage)) if stage.0 + 1 == upper);
    adjacent && !read_between
}

/// Whether the loss at action `at` extends the graph of the last stage. The last stage's backward pass must then come
/// next.
fn loss_joins(actions: &[Action], at: usize, last_stage: usize) -> bool {
    matches!(actions.get(at + 1), Some(Action::Backward(stage)) if stage.0 == last_stage)
        && actions[..at]
            .iter()
            .any(|action| matches!(action, Action::ForwardTracked { stage, .. } if stage.0 == last_stage))
}

/// The first stage of the live piece whose last stage is `last`. A schedule is valid, so there is one.
fn piece_that_ends_at(instructions: &[ModuleInstruction], last: usize) -> usize {
    instructions
        .iter()
        .rev()
        .find_map(|instruction| match instruction {
            ModuleInstruction::Track { stages, .. } if *stages.end() == last => {
                Some(*stages.start())
            }
            _ => None,
        })
        .unwrap_or(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(stages: usize, text: &str) -> Vec<ModuleInstruction> {
        let actions = text
            .split(", ")
            .map(|action| action.parse().expect("an action"))
            .collect();
        let schedule = Schedule::new(stages, actions).expect("a valid schedule");
        ModuleProgram::new(&schedule).instructions
    }

    fn tracked(stages: RangeInclusive<usize>) -> ModuleInstruction {
        ModuleInstruction::Track {
            stages,
            balanced: false,
        }
    }

    #[test]
    fn an_alternative_stands_alone() {
        assert_eq!(
            program(
                3,
                "forward_tracked 0, forward_tracked 1 alt=1, forward_tracked 2, loss, backward 2, backward 1, \
                 backward 0"
            )[..3],
            [
                tracked(0..=0),
                ModuleInstruction::Track {
                    stages: 1..=1,
                    balanced: true
                },
                tracked(2..=2),
            ]
        );
    }

    #[test]
    fn neighbours_tracked_and_swept_together_are_one_piece() {
        assert_eq!(
            program(
                3,
                "forward_keep 0, forward_tracked 1, forward_tracked 2, loss, backward 2, backward 1, \
                 forward_tracked 0, backward 0, optimize"
            ),
            [
                ModuleInstruction::Forward {
                    stage: 0,
                    keep_input: true
                },
                tracked(1..=2),
                ModuleInstruction::Loss { joins_piece: true },
                ModuleInstruction::Backward { stages: 1..=2 },
                tracked(0..=0),
                ModuleInstruction::Backward { stages: 0..=0 },
            ]
        );
    }

    #[test]
    fn a_piece_ends_where_its_output_is_read_again() {
        // Stage 1 runs untracked from the a_1 inside X_1, and is tracked only after stage 2's backward pass.
        assert_eq!(
            program(
                3,
                "forward_tracked 0, forward_keep 1, forward_tracked 2, loss, backward 2, forward_tracked 1, \
                 backward 1, backward 0"
            ),
            [
                tracked(0..=0),
                ModuleInstruction::Forward {
                    stage: 1,
                    keep_input: true
                },
                tracked(2..=2),
                ModuleInstruction::Loss { joins_piece: true },
                ModuleInstruction::Backward { stages: 2..=2 },
                tracked(1..=1),
                ModuleInstruction::Backward { stages: 1..=1 },
                ModuleInstruction::Backward { stages: 0..=0 },
            ]
        );
    }

    #[test]
    fn a_loss_before_the_last_tracked_forward_stands_alone() {
        assert_eq!(
            program(1, "forward_keep 0, loss, forward_tracked 0, backward 0")[1],
            ModuleInstruction::Loss { joins_piece: false }
        );
    }
}
