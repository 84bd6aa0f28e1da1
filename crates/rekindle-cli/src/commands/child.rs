//! `rekindle child`: runs a task for another process of this program.

use crate::{
    child::Task,
    commands::{plan_elsewhere, profile, train},
    failure::Outcome,
};

/// Runs the task, and writes the answer to standard output.
pub fn run(task: Task<'_>) -> Outcome {
    match task {
        Task::Train(args) => train::run(*args),
        Task::Profile(args) => profile::run(&args),
        Task::SmallestBudget(args) => profile::smallest_budget(&args),
        Task::PlanGraph(request, graph) => plan_elsewhere::answer(&request, &graph),
    }
}
