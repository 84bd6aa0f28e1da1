//! cubecl's settings in this process.
//!
//! cubecl reads them once, when the first device of a process is touched. This module sets those that the user did not
//! set (in `cubecl.toml`, `burn.toml` or the environment): how pools serve buffers, how much autotune measures, and
//! where compiled kernels and autotune's choices are [kept](keep_kernels_in). Without that call they are not kept.

use std::{
    collections::HashSet,
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use cubecl_environment::{
    config::logger::LogCrateLevel,
    environment::file_name,
    persistence::{Access, Database},
    records::RecordLevel,
    sync::Mutex,
};
use cubecl_runtime::config::{
    CubeClRuntimeConfig, RuntimeConfig, autotune::AutotuneLevel, cache::CacheConfig,
    compilation::CompilationLogLevel, memory::PersistentMemory,
};
use serde::{Deserialize, Serialize};
use toml::Table;

/// The name of the database of kernels, inside the folder where they are kept.
const DATABASE: &str = "kernels";

/// The file beside the database that lists the blocks of operations whose kernels autotune has chosen.
const CHOSEN: &str = "chosen";

static KEPT: OnceLock<PathBuf> = OnceLock::new();

/// Keeps compiled kernels and autotune's choices in a folder. Call this once, before the first use of a GPU in this
/// process; later calls have no effect. A place named in `cubecl.toml`, `burn.toml` or the environment takes
/// precedence.
pub fn keep_kernels_in(folder: PathBuf) {
    let _ = KEPT.set(folder);
}

/// Rebuilds what processes share beside a database, if it is missing or stale; errors show when the database is used.
///
/// turso rebuilds it as long as a process has the database open that found it so, for each further connection: then
/// threads that read at this moment lose their places in it, and panic ([turso's issue 7213]). A database that is closed
/// and opened again has no such connections.
///
/// [turso's issue 7213]: https://github.com/tursodatabase/turso/issues/7213
fn rebuild_shared(database: &Path) {
    drop(Database::open_at(database, Access::ReadWrite));
}

/// The path of the file [`CHOSEN`], if autotune's choices are kept.
fn chosen_file() -> Option<PathBuf> {
    let config = set_up();
    let folder = KEPT.get().filter(|folder| {
        !config.autotune.disable_cache && config.environment.path.root() == folder.as_path()
    });
    folder.map(|folder| folder.join(CHOSEN))
}

/// Blocks of operations, by their hashes, for which kernels were chosen before.
pub(crate) fn chosen() -> HashSet<u64> {
    let lines = chosen_file().and_then(|file| fs::read_to_string(file).ok());
    let lines = lines.unwrap_or_default();
    let hashes = lines.lines().map(|line| u64::from_str_radix(line, 16));
    hashes.filter_map(Result::ok).collect()
}

/// Records that autotune has chosen kernels for these blocks. Write errors are ignored: the next process then tunes
/// again.
pub(crate) fn note_chosen(blocks: &[u64]) {
    let Some(file) = chosen_file().filter(|_| !blocks.is_empty()) else {
        return;
    };
    let lines: String = blocks.iter().map(|one| format!("{one:016x}\n")).collect();
    let file = fs::File::options().create(true).append(true).open(file);
    let _ = file.and_then(|mut file| file.write_all(lines.as_bytes()));
}

/// How the pools serve buffers: by exact size. A freed buffer then serves only requests of its own size, and a clean-up
/// shrinks the pools to what is in use.
///
/// Pages, cubecl's default, do not shrink that far: one live buffer keeps its whole page, and page sizes grow with the
/// largest buffer and never shrink. `benches/pools` compares the settings.
const PERSISTENT_MEMORY: PersistentMemory = PersistentMemory::Enforced;

/// At every other level autotune first measures the device's peak performance, with two buffers of 1 GiB.
const AUTOTUNE_LEVEL: AutotuneLevel = AutotuneLevel::Full;

/// Applies the settings before a device is used, and returns those in effect: settings that were applied earlier are kept.
pub(crate) fn set_up() -> &'static CubeClRuntimeConfig {
    static IN_EFFECT: OnceLock<Arc<CubeClRuntimeConfig>> = OnceLock::new();
    IN_EFFECT.get_or_init(|| {
        let config = with_defaults(
            CubeClRuntimeConfig::from_current_dir().override_from_env(),
            &Written::from_current_dir().override_from_env(),
            KEPT.get().cloned().map(CacheConfig::Directory),
        );
        if config.compilation.cache || !config.autotune.disable_cache {
            let database = file_name(&config.environment.name);
            rebuild_shared(&config.environment.path.root().join(database));
        }
        CubeClRuntimeConfig::try_set(config);
        CubeClRuntimeConfig::get()
    })
}

/// `kept` is the folder in which kernels are kept, if any.
fn with_defaults(
    mut config: CubeClRuntimeConfig,
    written: &Written,
    kept: Option<CacheConfig>,
) -> CubeClRuntimeConfig {
    if !written.has("memory", "persistent_memory") {
        config.memory.persistent_memory = PERSISTENT_MEMORY;
    }
    if !written.has("autotune", "level") {
        config.autotune.level = AUTOTUNE_LEVEL;
    }
    if !written.has("compilation", "logger") {
        // Logs a line for each compiled kernel, to show progress. By default there is no listener.
        config.compilation.logger.level = CompilationLogLevel::Basic;
        config.compilation.logger.log = Some(LogCrateLevel::Info);
    }
    if !written.has("environment", "records") {
        config.environment.records.level = RecordLevel::Off;
    }
    if written.has("environment", "name") || written.has("environment", "path") {
        return config;
    }
    if !written.has("compilation", "cache") {
        // Without a build id, the kernels of two programs may be mistaken for each other.
        config.compilation.cache = kept.is_some() && buildid::build_id().is_some();
    }
    match kept {
        Some(folder) => {
            config.environment.path = folder;
            config.environment.name = DATABASE.into();
        }
        None => {
            config.autotune.disable_cache |= !written.has("autotune", "disable_cache");
            config.throughput.disable_cache |= !written.has("throughput", "disable_cache");
        }
    }
    config
}

/// The settings that the user wrote down, by section and key, read from the files that cubecl reads.
#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(transparent)]
struct Written(Table);

impl Written {
    fn has(&self, section: &str, key: &str) -> bool {
        let section = self.0.get(section);
        section.is_some_and(|keys| keys.get(key).is_some())
    }
}

impl RuntimeConfig for Written {
    fn storage() -> &'static Mutex<Option<Arc<Self>>> {
        static STORAGE: Mutex<Option<Arc<Written>>> = Mutex::new(None);
        &STORAGE
    }

    fn file_names() -> &'static [&'static str] {
        CubeClRuntimeConfig::file_names()
    }

    fn section_file_names() -> &'static [(&'static str, &'static str)] {
        CubeClRuntimeConfig::section_file_names()
    }

    fn override_from_env(mut self) -> Self {
        for (variable, section, key) in [
            ("CUBECL_AUTOTUNE_LEVEL", "autotune", "level"),
            ("CUBECL_AUTOTUNE_CACHE", "autotune", "disable_cache"),
            ("CUBECL_THROUGHPUT_CACHE", "throughput", "disable_cache"),
            ("CUBECL_DEBUG_LOG", "compilation", "logger"),
            ("CUBECL_DEBUG_OPTION", "compilation", "logger"),
            ("CUBECL_ENVIRONMENT", "environment", "name"),
            ("CUBECL_ENVIRONMENT_RECORDS", "environment", "records"),
        ] {
            if std::env::var_os(variable).is_some() {
                let section = self.0.entry(section);
                let section = section.or_insert_with(|| Table::new().into());
                if let Some(keys) = section.as_table_mut() {
                    keys.insert(key.into(), true.into());
                }
            }
        }
        self
    }
}

#[cfg(test)]
#[path = "../tests/internals/cubecl.rs"]
mod tests;
