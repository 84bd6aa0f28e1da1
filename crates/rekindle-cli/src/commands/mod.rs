//! The commands, one file each.

pub mod completions;
pub mod devices;
pub mod estimate;
pub mod init;
pub mod max;
pub mod plan;
pub mod plan_graph;
pub mod profile;
pub mod report;
pub mod runs;
pub mod sweep;
pub mod train;
pub mod verify;
