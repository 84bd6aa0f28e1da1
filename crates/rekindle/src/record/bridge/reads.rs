//! Detects that a step reads the value of a tensor, at the read itself.
//!
//! Nothing is computed while a step is recorded, so burn returns an error for a read. Most code panics then, but
//! `match loss.try_into_scalar() { Ok(loss) if loss > 0.01 => .., _ => .. }` takes the second branch, and the recording
//! would contain that branch. burn waits for every read in one function of cubecl, which is instrumented: its span makes
//! the read known, and panics.

use std::sync::LazyLock;

use tracing::{
    Dispatch, Event, Metadata, Subscriber, dispatcher,
    level_filters::LevelFilter,
    span::{Attributes, Id, Record},
};

use crate::record::error::READS;

/// The span of the function that waits for a read.
const WAITS: &str = "block_on";

/// Runs `step` on this thread, and panics where it reads a value.
pub(super) fn without_reads<T>(step: impl FnOnce() -> T) -> T {
    // Where there is but one in the process, tracing asks only the thread that comes to a span first whether it is wanted.
    static DISPATCHES: LazyLock<[Dispatch; 2]> =
        LazyLock::new(|| [Dispatch::new(Reads), Dispatch::new(Reads)]);
    dispatcher::with_default(&DISPATCHES[0], step)
}

struct Reads;

impl Subscriber for Reads {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.name() == WAITS && metadata.target().starts_with("cubecl")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        panic!("{READS}");
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
