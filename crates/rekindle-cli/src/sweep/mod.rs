//! A sweep: one config under many schedules, each run in a separate process.
//!
//! | module | what it owns |
//! |---|---|
//! | [`point`] | what is run, and in which order |
//! | [`record`] | [`SweepRecord`] and its rows, and the table |
//! | [`folder`] | the files that a sweep leaves |

pub mod folder;
pub mod point;
pub mod record;

pub use point::Point;
pub use record::{SweepRecord, SweepRow};

#[cfg(test)]
mod tests;
