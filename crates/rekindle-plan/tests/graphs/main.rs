//! Planners of graphs in one program.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../graph_support/mod.rs"]
mod graph_support;

mod chains;
mod exchange;
mod exhaustive;
mod frontier;
mod large;
mod offload;
mod program;
mod properties;
mod stages;
mod units;
mod updates;
