//! Schedules that no planner would make: random actions, as long as the rules allow them.

use rand::{Rng, SeedableRng, rngs::StdRng};
use rekindle_plan::{Action, Schedule, ScheduleError, StageId};

/// Actions that are picked at random before the schedule is brought to its end.
const PICKS: usize = 30;

/// A valid schedule whose tracked forwards take `alternatives[i]` ways besides the default.
pub fn schedule(alternatives: &[usize], seed: u64) -> Schedule {
    let stages = alternatives.len();
    let mut random = StdRng::seed_from_u64(seed);
    let mut actions: Vec<Action> = Vec::new();
    for _ in 0..random.random_range(0..PICKS) {
        let allowed: Vec<Action> = every_action(alternatives)
            .filter(|&action| is_allowed(stages, &actions, action))
            .collect();
        if allowed.is_empty() {
            break;
        }
        actions.push(allowed[random.random_range(0..allowed.len())]);
    }
    // To the end: the loss or a backward where one is possible, else the graph that is nearest to the next.
    let end = |actions: &[Action]| {
        let backwards = (0..stages).map(|stage| Action::Backward(StageId(stage)));
        let tracked = (0..stages).rev().map(Action::tracked);
        let mut wanted = std::iter::once(Action::Loss)
            .chain(backwards)
            .chain(tracked);
        wanted.find(|&action| is_allowed(stages, actions, action))
    };
    loop {
        match Schedule::new(stages, actions.clone()) {
            Ok(schedule) => return schedule,
            Err(_) => actions.push(end(&actions).expect("a step can always be ended")),
        }
    }
}

fn every_action(alternatives: &[usize]) -> impl Iterator<Item = Action> {
    let of_stage = |(stage, &more): (usize, &usize)| {
        let id = StageId(stage);
        let tracked = (0..=more).map(move |alternative| Action::ForwardTracked {
            stage: id,
            alternative,
        });
        tracked.chain([
            Action::Forward(id),
            Action::ForwardKeep(id),
            Action::Backward(id),
        ])
    };
    let stages = alternatives.iter().enumerate();
    stages.flat_map(of_stage).chain([Action::Loss])
}

/// Whether the rules of schedules let `action` follow.
fn is_allowed(stages: usize, actions: &[Action], action: Action) -> bool {
    let longer = actions.iter().copied().chain([action]).collect();
    !matches!(
        Schedule::new(stages, longer),
        Err(ScheduleError::Broken { .. })
    )
}
