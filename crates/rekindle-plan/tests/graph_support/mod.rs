//! What the tests of graphs share: graphs to plan, a second simulator and an exhaustive search.
#![allow(
    dead_code,
    reason = "every test binary includes this and uses a part of it"
)]

pub mod exhaustive;
pub mod graphs;
pub mod naive;
