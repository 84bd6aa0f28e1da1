//! The log on standard error, and what it says of kernels that are being compiled for a GPU, which can take minutes at the
//! first start.
//!
//! cubecl logs a line before it compiles a kernel, and none if it finds a kept one. These lines are counted in every
//! command, and the count is printed from time to time.

use std::{
    env,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use env_logger::{Builder, Env, Logger};
use log::{LevelFilter, Log, Metadata, Record};
use rekindle_train::device::{DeviceId, DeviceInfo, keep_kernels, kept_kernels};

use crate::{table::several, terminal};

/// The log target of cubecl's lines.
const TARGET: &str = "cubecl::compilation";

/// Time between two lines.
const INTERVAL: Duration = Duration::from_secs(5);

static COUNT: AtomicUsize = AtomicUsize::new(0);
/// When the last line was written.
static LAST: Mutex<Option<Instant>> = Mutex::new(None);

/// What is printed, unless `RUST_LOG` says otherwise. Warnings of `cubecl_runtime` hold whole sources of kernels, mostly of
/// those that autotune tries in vain; what fails for good is reported where its result is read.
const PRINTED: &str = "warn,cubecl_runtime=error";

/// Prints warnings of all libraries, and counts the kernels that are compiled. Call this once.
pub fn listen() {
    let usual = if terminal::quiet() { "error" } else { PRINTED };
    let printed = Builder::from_env(Env::default().default_filter_or(usual)).build();
    log::set_max_level(printed.filter().max(LevelFilter::Info));
    // Fails only if a logger is already set.
    let _ = log::set_boxed_logger(Box::new(Lines(printed)));
}

/// The variable that names another folder for what is kept between commands. If its value is empty, nothing is kept.
const CACHE: &str = "REKINDLE_CACHE";

/// The folder of kernels, if there is one.
fn folder() -> Option<PathBuf> {
    let folder = match env::var_os(CACHE) {
        Some(folder) if folder.is_empty() => return None,
        Some(folder) => PathBuf::from(folder),
        None => dirs::cache_dir()?.join("rekindle"),
    };
    Some(folder.join("kernels"))
}

/// Keeps the kernels of a device that will be used.
pub fn prepare(device: &DeviceInfo) {
    if device.device == DeviceId::Cpu {
        return;
    }
    if let Some(folder) = folder()
        && let Err(error) = keep_kernels(&folder, device)
    {
        note!(
            "warning: compiled kernels cannot be cached in {} ({error}); set {CACHE} to another folder, or to nothing to disable the cache",
            folder.display()
        );
    }
}

/// Kernels compiled so far.
pub fn count() -> usize {
    COUNT.load(Relaxed)
}

/// A message about where the kernels are kept.
pub fn kept() -> String {
    let compiled = several(count(), "compiled kernel");
    match kept_kernels() {
        Some(folder) => format!("{compiled}, cached in {}", folder.display()),
        None => format!("{compiled}, not cached"),
    }
}

/// Notes that a kernel is compiled.
fn compiles() {
    let count = COUNT.fetch_add(1, Relaxed) + 1;
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_none_or(|last| last.elapsed() >= INTERVAL) {
        *last = Some(Instant::now());
        terminal::beside_bar(|| match count {
            1 => note!("compiling kernels"),
            _ => note!("compiling kernels: {count} so far"),
        });
    }
}

/// The log: cubecl's lines are counted, and those that are asked for printed.
struct Lines(Logger);

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET || self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if record.target() == TARGET {
            compiles();
        }
        if self.0.matches(record) {
            terminal::beside_bar(|| self.0.log(record));
        }
    }

    fn flush(&self) {}
}
