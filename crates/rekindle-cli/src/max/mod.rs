//! Finds the largest batch, depth or width that fits by planning, and reports which techniques made the difference.
//!
//! | module | what it owns |
//! |---|---|
//! | [`subject`] | a config with one size left open, and its counted chain for every size |
//! | [`schedule_kind`] | whether one size fits, plain, in equal segments and under a plan |
//! | [`search`] | the largest size that fits |
//! | [`record`] | [`MaxRecord`](record::MaxRecord): the results |
//! | [`text`] | the results as text |

pub mod record;
pub mod schedule_kind;
pub mod search;
pub mod subject;
pub mod text;
