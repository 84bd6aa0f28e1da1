//! A sweep: one config under many schedules, each run in a separate process.
//!
//! | module | what it owns |
//! |---|---|
//! | [`point`] | what is run, and in which order |
//! | [`record`] | [`SweepRecord`] and its rows, from which all views are made |
//! | [`table`] | the table, for terminals and pages |
//! | [`folder`] | the files that a sweep leaves |

pub mod folder;
pub mod point;
pub mod record;
pub mod table;

pub use point::Point;
pub use record::{SweepRecord, SweepRow};

#[cfg(test)]
mod tests;
