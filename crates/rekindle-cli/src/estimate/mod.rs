//! Estimates the memory and time of a config from shapes: the step is recorded, and nothing is run.
//!
//! | module | what it owns |
//! |---|---|
//! | [`document`] | the answer |
//! | [`layers`] | the tree of layers |
//! | [`text`], [`layer_table`] | the answer for people |

mod document;
mod layer_table;
mod layers;
#[cfg(test)]
mod tests;
mod text;

pub use self::{
    document::{Estimate, Wanted},
    layers::describe,
};
#[cfg(test)]
pub use document::ESTIMATE_FORMAT;
