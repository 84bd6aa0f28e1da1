//! The planners: from a chain and a budget to a schedule.
//!
//! [`plan`](crate::plan()) is the entry point for all of them; the functions here are only the algorithms.
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
//! `family.rs` compares the schedules of planners that try several numbers (of segments or snapshots). `cuts.rs` finds
//! the best single-level cut within a budget, `single_levels.rs` those for all budgets. `terms.rs` has the symbols that
//! the recurrences share, `windows.rs` finds equal windows; `single_level.rs` and `persistent.rs` turn cuts and trees
//! into actions; `smallest_peak.rs` is the lower bound.
//!
//! # Long chains
//! `optimal` and [`smallest_peak()`] examine all windows of stages and accept up to 2,000 stages; for longer chains,
//! `auto` uses `segments`. The others accept up to 20,000 stages; `none`, and `uniform` with a number of segments,
//! accept any number.

mod cuts;
mod error;
mod family;
mod kind;
mod length;
mod none;
mod optimal;
mod persistent;
mod revolve;
mod segments;
mod single_level;
mod single_levels;
mod smallest_peak;
mod source;
mod sqrt;
mod terms;
mod uniform;
mod windows;

pub use error::PlanError;
pub use kind::{PlannerKind, PlannerParseError};
pub use none::none;
pub use revolve::revolve;
pub use segments::segments;
pub(crate) use segments::smallest_segments_peak;
pub use single_level::single_level;
pub use smallest_peak::smallest_peak;
pub use source::{PlanSource, Slots};
pub use uniform::uniform;

pub(crate) use family::Family;
pub(crate) use length::{MOST_STAGES, MOST_STAGES_OF_WINDOWS};
pub(crate) use optimal::Optimal;
pub(crate) use single_levels::SingleLevels;
