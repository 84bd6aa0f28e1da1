//! Whether a training fits, by its shapes alone: what its peak is made of, what would fit, and the largest size that does.
//!
//! | file | what it owns |
//! |---|---|
//! | [`Known`] (`known.rs`) | a step by its shapes |
//! | [`Breakdown`] (`breakdown.rs`) | what a peak is made of |
//! | [`Advice`] (`advice.rs`) | whether a step fits a limit, and what would |
//! | [`Budgets`] (`budgets.rs`) | what smaller budgets cost |
//! | [`ScheduleKind`] (`schedule_kind.rs`) | the fastest schedule of a kind within a budget |
//! | [`largest`] (`search.rs`) | the largest size that fits |

mod advice;
mod breakdown;
mod budgets;
mod known;
mod schedule_kind;
mod search;

pub use advice::{Advice, Limit};
pub use breakdown::Breakdown;
pub use budgets::Budgets;
pub use known::Known;
pub use schedule_kind::{ScheduleKind, spread};
pub use search::largest;
