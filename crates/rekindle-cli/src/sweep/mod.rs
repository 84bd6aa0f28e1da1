//! A sweep: one config under many schedules, each run in a separate process.
//!
//! | module | what it owns |
//! |---|---|
//! | [`point`] | what is run, and in which order |
//! | [`record`] | [`SweepRecord`] and its rows, from which all views are made |
//! | [`pareto`] | which rows no other row beats |
//! | [`runner`], [`progress`] | runs rows, and shows progress |
//! | [`table`] | the table, for terminals and pages |
//! | [`folder`] | the files that a sweep leaves |

pub mod folder;
pub mod pareto;
pub mod point;
pub mod progress;
pub mod record;
pub mod runner;
pub mod table;

pub use folder::SweepFolder;
pub use point::Point;
pub use progress::RowProgress;
pub use record::{SweepRecord, SweepRow};
pub use runner::Runner;

#[cfg(test)]
mod tests;
