//! The largest batch, depth or width that fits: found by planning, told with what made the difference.
//!
//! | module | what it owns |
//! |---|---|
//! | [`subject`] | a config with one size left open, and its counted chain for every size |
//! | [`schedule_kind`] | whether one size fits, plain, in equal segments and under a plan |
//! | [`search`] | the largest size that fits |
//! | [`record`] | [`MaxRecord`](record::MaxRecord): what was found |
//! | [`text`] | the same for people |

pub mod record;
pub mod schedule_kind;
pub mod search;
pub mod subject;
pub mod text;
