//! The planners: from a chain and a budget to a schedule.
//!
//! [`plan`](crate::plan()) is the door to all of them; the functions here are the algorithms alone.
//!
//! | planner | what | file |
//! |---|---|---|
//! | `none` | keep everything | `none.rs` |
//! | `uniform` | segments of equal length | `uniform.rs` |
//! | `sqrt` | about sqrt(n) segments, cut by bytes | `sqrt.rs` |
//! | `segments` | the best single-level cut | `segments.rs` |
//! | `revolve` | binomial schedules for equal stages | `revolve.rs` |
//! | `optimal` | the best persistent schedule | `optimal.rs` |
//!
//! `terms.rs` holds the symbols that the recurrences share, `repeats.rs` and `windows.rs` find what is equal among them; `single_level.rs` and `persistent.rs` turn cuts and trees into
//! actions; `smallest_peak.rs` and `least_time.rs` are the bounds.

mod error;
mod least_time;
mod none;
pub(crate) mod optimal;
mod persistent;
mod repeats;
mod revolve;
pub(crate) mod segments;
mod single_level;
mod smallest_peak;
mod sqrt;
pub(crate) mod terms;
mod uniform;
mod windows;

pub use error::PlanError;
pub use least_time::least_time;
pub use none::none;
pub use revolve::revolve;
pub use segments::{segments, smallest_segments_peak};
pub use single_level::single_level;
pub use smallest_peak::smallest_peak;
pub use sqrt::sqrt;
pub use uniform::uniform;
