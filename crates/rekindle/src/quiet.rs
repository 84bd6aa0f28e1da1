//! Calls whose panic is handled as a result.
//!
//! burn reports some conditions only by a panic, without changing any state. This module catches such a panic and keeps
//! its message off standard error. The first call installs a panic hook in front of the process's own, which still
//! handles every other panic.
//!
//! Errors of wgpu are noted, too: if it rejects a kernel, for example because a buffer is larger than the binding limit,
//! cubecl panics on the device's own thread, which continues without the kernel, and reading its result gives wrong
//! numbers without an error. So a step can fail instead of returning those numbers.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::{Mutex, Once, PoisonError},
    thread,
};

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Start of the panic message of cubecl's handler (cubecl-wgpu 0.11.3, `PoisonWatch::watch`).
const REFUSED: &str = "wgpu error";

/// The first wgpu error that has not been taken yet.
static FIRST: Mutex<Option<String>> = Mutex::new(None);

/// Installs the hook in front of the process's own, on the first call.
fn look_at_panics() {
    static HOOK: Once = Once::new();
    // A thread that unwinds must not change the hook, and destructors may call this function.
    if !thread::panicking() {
        HOOK.call_once(|| {
            let before = take_hook();
            set_hook(Box::new(move |panic| {
                if QUIET.get() {
                    PLACE.set(panic.location().map(ToString::to_string));
                } else {
                    note(panic.payload_as_str().unwrap_or_default());
                    before(panic);
                }
            }));
        });
    }
}

/// Runs `call`. If it panics on this thread, returns the message and prints nothing.
pub fn catch<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    look_at_panics();
    let outside = QUIET.replace(true);
    PLACE.set(None);
    let result = catch_unwind(AssertUnwindSafe(call));
    QUIET.set(outside);
    result.map_err(|panic| text_of(&*panic))
}

/// The line of code of the last panic that was caught on this thread.
pub(crate) fn place() -> Option<String> {
    PLACE.with_borrow(Clone::clone)
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

/// Takes the first wgpu error about a rejected kernel, reported on wgpu's own thread, since the last call.
pub(crate) fn take_refusal() -> Option<String> {
    look_at_panics();
    FIRST.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Stores a panic's message if it comes from wgpu.
fn note(message: &str) {
    if message.starts_with(REFUSED) {
        let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| message.split_whitespace().collect::<Vec<_>>().join(" "));
    }
}
