//! Whether a training fits, by its shapes alone: what its peak is made of, and the largest size that fits.
//!
//! | file | what it owns |
//! |---|---|
//! | [`Breakdown`] (`breakdown.rs`) | what a peak is made of |
//! | [`ScheduleKind`] (`schedule_kind.rs`) | the fastest schedule of a kind within a budget |
//! | [`largest`] (`search.rs`) | the largest size that fits |

mod breakdown;
mod schedule_kind;
mod search;

pub use breakdown::Breakdown;
pub use schedule_kind::{ScheduleKind, spread};
pub use search::largest;
