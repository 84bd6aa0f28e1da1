//! rekindle
