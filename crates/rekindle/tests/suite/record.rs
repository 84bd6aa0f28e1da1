//! Recorded steps: what they hand out, what they notice, and what they refuse.

mod assumptions;
mod estimates;
mod guards;
mod kept;
mod limits;
mod outputs;
mod packing;
mod places;
mod ways;
