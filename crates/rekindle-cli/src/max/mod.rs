//! Finds the largest batch or depth that fits by planning, and reports which techniques made the difference.
//!
//! | module | what it owns |
//! |---|---|
//! | [`subject`] | a config with one size left open, and its counted chain for every size |
//! | [`record`] | [`MaxRecord`](record::MaxRecord): what was found |
//! | [`text`] | the same for people |

pub mod record;
pub mod subject;
pub mod text;
