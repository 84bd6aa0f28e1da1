//! Planners of chains in one program.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../support/deep_linear.rs"]
mod deep_linear;
#[path = "../support/least_time.rs"]
mod least_time;
#[path = "../support/mutated.rs"]
mod mutated;
#[path = "../support/planned.rs"]
mod planned;
#[path = "../support/referee.rs"]
mod referee;
#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod exhaustive;
mod long_chains;
mod more_room;
mod properties;
mod recurrence;
mod reference;
mod segments;
