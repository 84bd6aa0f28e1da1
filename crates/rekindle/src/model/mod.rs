//! Models described by plain values, and built from them.

pub mod spec;
