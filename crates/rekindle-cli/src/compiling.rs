//! Shows that kernels are being compiled for a GPU, which can take minutes at the first start.
//!
//! cubecl logs a line before it compiles a kernel, and none if it finds a kept one. These lines are counted in every
//! command. A progress bar shows the count; without one, a line is printed from time to time.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use log::{LevelFilter, Log, Metadata, Record};
use rekindle_train::device::{DeviceId, DeviceInfo, keep_kernels, kept_kernels};

use crate::{cache, table::several};

/// The log target of cubecl's lines.
const TARGET: &str = "cubecl::compilation";

/// Time between two lines, and how long a bar still shows the last kernel.
const INTERVAL: Duration = Duration::from_secs(5);

static COUNT: AtomicUsize = AtomicUsize::new(0);
static BAR: AtomicBool = AtomicBool::new(false);
/// When the last kernel was compiled, and when the last line was written.
static LAST: Mutex<(Option<Instant>, Option<Instant>)> = Mutex::new((None, None));

/// Keeps the kernels of a device that will be used, and counts those that are compiled.
pub fn prepare(device: &DeviceInfo) {
    if device.device == DeviceId::Cpu {
        return;
    }
    if let Some(folder) = cache::kernels()
        && let Err(error) = keep_kernels(&folder, device)
    {
        note!(
            "warning: compiled kernels cannot be cached in {} ({error}); set {} to another folder, or to nothing to disable the cache",
            folder.display(),
            cache::FOLDER_VARIABLE
        );
    }
    // A second device in this process finds it set.
    if log::set_logger(&Lines).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

/// Kernels compiled so far.
pub fn count() -> usize {
    COUNT.load(Relaxed)
}

/// A bar shows [`shown`] from now on, or no longer.
pub fn shown_by_bar(shown: bool) {
    BAR.store(shown, Relaxed);
}

/// The text in a bar while kernels are compiled.
pub fn shown() -> String {
    let (last, _) = *LAST.lock().unwrap_or_else(PoisonError::into_inner);
    match last {
        Some(last) if last.elapsed() < INTERVAL => format!(" compiling kernels: {}", count()),
        _ => String::new(),
    }
}

/// A message about where the kernels are kept.
pub fn kept() -> String {
    let compiled = several(count(), "compiled kernel");
    match kept_kernels() {
        Some(folder) => format!("{compiled}, cached in {}", folder.display()),
        None => format!("{compiled}, not cached"),
    }
}

struct Lines;

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let count = COUNT.fetch_add(1, Relaxed) + 1;
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        last.0 = Some(now);
        let due = last.1.is_none_or(|line| now - line >= INTERVAL);
        if due && !BAR.load(Relaxed) {
            last.1 = Some(now);
            match count {
                1 => note!("compiling kernels"),
                _ => note!("compiling kernels: {count} so far"),
            }
        }
    }

    fn flush(&self) {}
}
