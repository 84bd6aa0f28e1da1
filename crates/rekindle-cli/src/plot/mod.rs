//! Pictures, as SVG and as text.
//!
//! | module | what it owns |
//! |---|---|
//! | [`chart`] | a picture: colours, axes and ticks, shapes, legend, what the pointer shows |
//! | [`timeline`] | one step: memory over time, by kind |
//! | [`frontier`] | a sweep: memory against time |
//! | [`text`] | memory against time for terminals |
//!
//! Those in SVG load no resources and contain no scripts.

mod chart;
pub mod frontier;
pub mod text;
pub mod timeline;
