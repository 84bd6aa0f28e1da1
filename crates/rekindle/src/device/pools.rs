//! How this process's pools serve buffers.
//!
//! cubecl reads its settings once, when the first device of a process is touched. Those that a user wrote down
//! (`cubecl.toml`, `burn.toml`, environment) stay, but for the one setting that decides the kind of pools.

use std::sync::OnceLock;

use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig, memory::PersistentMemory};
use rekindle_plan::pools::PoolMode;

/// Asks for a kind of pools and says which kind they are: the first call in a process decides.
pub(super) fn set(mode: PoolMode) -> PoolMode {
    static CHOSEN: OnceLock<PoolMode> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        if CubeClRuntimeConfig::storage().lock().is_none() {
            let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
            config.memory.persistent_memory = match mode {
                PoolMode::ExactSizes => PersistentMemory::Enforced,
                PoolMode::Pages => PersistentMemory::Enabled,
            };
            CubeClRuntimeConfig::set(config);
        }
        // Somebody else may have touched a device before.
        match CubeClRuntimeConfig::get().memory.persistent_memory {
            PersistentMemory::Enforced => PoolMode::ExactSizes,
            PersistentMemory::Enabled | PersistentMemory::Disabled => PoolMode::Pages,
        }
    })
}
