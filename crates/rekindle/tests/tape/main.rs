//! A tape gives what the plain run gives, bit for bit, or an error.

#[path = "../parity/compare.rs"]
#[expect(
    dead_code,
    reason = "shared with the parity tests, which use all of it"
)]
mod compare;
mod misuse;
mod models;
mod parity;
mod random;
mod run;

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::Device;

fn device() -> Device {
    Device::flex().autodiff()
}

/// Seeding is process-wide: tests must not overlap.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}
