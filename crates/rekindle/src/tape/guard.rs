//! Who runs the backward that passes a checkpoint's output.
//!
//! The output of a checkpoint is a leaf to burn: an ordinary `loss.backward()` would stop there, with no gradient for
//! anything before. So a border lies in the graph behind every output, and a backward that passes it must be its own
//! tape's. There is no way to return an error from inside burn's backward: without a tape it panics, and a tape that
//! comes to another's border is told.

use std::cell::Cell;

thread_local! {
    static SWEEPING: Cell<Option<u64>> = const { Cell::new(None) };
    static MET_ANOTHER: Cell<bool> = const { Cell::new(false) };
}

/// One tape's backward, as long as it lives.
pub(super) struct Sweeping(());

impl Sweeping {
    pub(super) fn start(tape: u64) -> Self {
        SWEEPING.set(Some(tape));
        MET_ANOTHER.set(false);
        Self(())
    }

    /// Whether the backward has passed a border of another tape.
    pub(super) fn met_another_tape(&self) -> bool {
        MET_ANOTHER.get()
    }
}

impl Drop for Sweeping {
    fn drop(&mut self) {
        SWEEPING.set(None);
    }
}

/// A backward passes the border of a tape.
#[expect(
    clippy::panic,
    reason = "burn's backward returns no errors, and its gradients would be wrong"
)]
pub(super) fn pass(tape: u64) {
    match SWEEPING.get() {
        Some(sweeping) if sweeping == tape => {}
        Some(_) => MET_ANOTHER.set(true),
        None => panic!(
            "an ordinary backward has come to the output of a checkpoint, where it would lose all gradients before \
             it: call `tape.backward(loss, &model)` in place of `loss.backward()`"
        ),
    }
}
