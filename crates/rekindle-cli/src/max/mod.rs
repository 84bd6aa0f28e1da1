//! The largest batch, depth or width that fits: found by planning, told with what made the difference.
//!
//! | module | what it owns |
//! |---|---|
//! | [`subject`] | a config with one size left open, and its counted chain for every size |
//! | [`record`] | [`MaxRecord`](record::MaxRecord): what was found |
//! | [`text`] | the same for people |

pub mod record;
pub mod subject;
pub mod text;
