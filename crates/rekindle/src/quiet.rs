//! Calls whose panic is an answer.
//!
//! burn reports some conditions by a panic alone, and leaves everything as it was. Such a panic is caught, and its message
//! is kept from standard error: on the first call a panic hook is put before the process's own, which stays in force
//! for every other panic.

use std::{
    any::Any,
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::{Mutex, Once, PoisonError},
    thread,
};

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// How cubecl's handler begins (cubecl-wgpu 0.11.3, `PoisonWatch::watch`).
const REFUSED: &str = "wgpu error";

/// The first refusal that nobody has asked for.
static FIRST: Mutex<Option<String>> = Mutex::new(None);

/// Puts the hook before the process's own, on the first call.
fn look_at_panics() {
    static HOOK: Once = Once::new();
    // A thread that unwinds may not change the hook; what it drops may come here.
    if !thread::panicking() {
        HOOK.call_once(|| {
            let before = take_hook();
            set_hook(Box::new(move |panic| {
                if !QUIET.get() {
                    note(panic.payload_as_str().unwrap_or_default());
                    before(panic);
                }
            }));
        });
    }
}

/// Runs `call`; the message of a panic on this thread is returned, and not printed.
pub fn catch<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    look_at_panics();
    let outside = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    QUIET.set(outside);
    result.map_err(|panic| text_of(&*panic))
}

/// As [`catch`], for the one panic whose message contains `expected`; any other goes on.
pub fn catch_only<T>(expected: &str, call: impl FnOnce() -> T) -> Option<T> {
    match catch(call) {
        Ok(value) => Some(value),
        Err(message) if message.contains(expected) => None,
        Err(message) => panic!("{message}"),
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_owned()
}

/// What wgpu has said of a kernel that it refused, on a thread of its own, since this was last called.
pub(crate) fn take_refusal() -> Option<String> {
    look_at_panics();
    FIRST.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Notes a panic's message if it is wgpu's.
fn note(message: &str) {
    if message.starts_with(REFUSED) {
        let mut first = FIRST.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| message.split_whitespace().collect::<Vec<_>>().join(" "));
    }
}
