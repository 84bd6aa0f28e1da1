//! What the program does, by its commands.

#[path = "../support/history.rs"]
mod history;
#[path = "../support/json_schema.rs"]
mod json_schema;
#[path = "../support/limit.rs"]
mod limit;
#[path = "../support/picture.rs"]
mod picture;
#[path = "../support/signal.rs"]
mod signal;
#[path = "../support/mod.rs"]
mod support;

mod advice;
mod config_schema;
mod errors;
mod faults;
mod fits;
mod flags;
mod json_documents;
mod max;
mod no_downloads;
mod pages;
#[cfg(target_os = "linux")]
mod power_loss;
mod recovery;
mod report;
mod resident;
#[cfg(unix)]
mod shell;
mod stop;
mod sweep;
mod text_views;
mod train;
