//! The commands, one file each.

pub mod child;
pub mod devices;
pub mod estimate;
mod explain;
pub mod init;

pub mod max;
pub mod plan;
pub mod plan_elsewhere;
pub mod profile;
pub mod report;
pub mod shell;
pub mod sweep;
pub mod train;
pub mod verify;
