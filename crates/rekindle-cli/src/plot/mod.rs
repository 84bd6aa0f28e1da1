//! Pictures, as SVG.
//!
//! | module | what it owns |
//! |---|---|
//! | [`chart`] | a picture: axes, shapes, legend, what the pointer shows |
//! | [`axis`] | units and ticks |
//! | [`columns`] | a timeline reduced to the columns of a picture |
//! | [`timeline`] | one step: memory over time, by kind |
//! | [`frontier`] | a sweep: memory against time |
//!
//! Pictures load no resources and contain no scripts. Axes of memory and time begin at zero.

mod axis;
mod chart;
mod columns;
pub mod frontier;
pub mod timeline;
