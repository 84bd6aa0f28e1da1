//! rekindle-alloc
