//! What a config takes, from shapes: the step is recorded, and nothing is run.
//!
//! | module | what it owns |
//! |---|---|
//! | [`document`] | the answer |
//! | [`known`] | the recorded step that it counts |
//! | [`layers`] | the tree of layers |
//! | [`breakdown`] | what a peak is made of |
//! | [`budgets`] | what smaller budgets cost |
//! | [`ranks`] | the batch shared by several ranks |
//! | [`advice`] | whether it fits, and what would |
//! | [`text`], [`layer_table`] | the answer for people |

mod advice;
mod breakdown;
mod budgets;
mod document;
mod known;
mod layer_table;
mod layers;
pub mod ranks;
#[cfg(test)]
mod tests;
mod text;

pub use self::{advice::Limit, document::Estimate, known::Wanted, layers::describe};
#[cfg(test)]
pub use document::ESTIMATE_FORMAT;
