//! How cubecl's memory pools serve this process's buffers, and what they take beyond those buffers.
//!
//! cubecl reads its settings once, when the first device of a process is touched. Two of them are set here, where the
//! user did not set them (in `cubecl.toml`, `burn.toml` or the environment).

use rekindle_plan::{Bytes, Chain};

/// cubecl pads every buffer to a multiple of this.
const PADDING_BYTES: u64 = 512;
/// Buffers of one stage at once: its parameters, their gradients and an optimizer's moments, and what its graph saves.
const BUFFERS_PER_STAGE: u64 = 16;

/// Most bytes that the pools reserve beyond live buffers while a schedule of `chain` runs, provided that free buffers
/// are given back before an action that would not fit (see [`Room`](crate::executor::Room)): padding, and one
/// activation that a queue frees late. A plan adds it to the live buffers, so that a budget on reserved bytes covers
/// both.
///
/// What is free between two actions needs no term: pools of exact sizes give all of it back. Nor does what is free
/// inside an action, since profiles measure its temporary bytes as the growth of such pools.
#[must_use]
pub fn pool_overhead(chain: &Chain) -> Bytes {
    let padding = chain.stages.len() as u64 * BUFFERS_PER_STAGE * PADDING_BYTES;
    let outputs = chain.stages.iter().map(|stage| stage.output_bytes);
    outputs.max().unwrap_or_default() + Bytes(padding)
}

#[cfg(feature = "cubecl")]
pub(super) use settings::set_up;

#[cfg(feature = "cubecl")]
mod settings {
    use std::sync::{Arc, OnceLock};

    use cubecl_environment::sync::Mutex;
    use cubecl_runtime::config::{
        CubeClRuntimeConfig, RuntimeConfig, autotune::AutotuneLevel, memory::PersistentMemory,
    };
    use serde::{Deserialize, Serialize, de::IgnoredAny};

    /// How the pools serve buffers: each by its exact size. A freed buffer then serves only requests of its own size,
    /// and a clean-up takes the pools down to what is in use.
    ///
    /// Pages, cubecl's default, are not taken down so far: one live buffer keeps its page, and pages grow with the
    /// largest buffer and never shrink. `benches/pools` compares the settings.
    const PERSISTENT_MEMORY: PersistentMemory = PersistentMemory::Enforced;

    /// At every other level autotune first measures what the device can do at most, with two buffers of 1 GiB.
    const AUTOTUNE_LEVEL: AutotuneLevel = AutotuneLevel::Full;

    /// The pools of this process.
    pub(in super::super) struct Pools {
        config: Arc<CubeClRuntimeConfig>,
    }

    impl Pools {
        /// Whether they serve every buffer by its exact size.
        pub(in super::super) fn exact_sizes(&self) -> bool {
            matches!(
                self.config.memory.persistent_memory,
                PersistentMemory::Enforced
            )
        }
    }

    /// Sets up the pools before a device is touched. Settings that somebody made before stay.
    pub(in super::super) fn set_up() -> &'static Pools {
        static POOLS: OnceLock<Pools> = OnceLock::new();
        POOLS.get_or_init(|| {
            CubeClRuntimeConfig::try_set(with_defaults(
                CubeClRuntimeConfig::from_current_dir().override_from_env(),
                &Written::from_current_dir().override_from_env(),
            ));
            Pools {
                config: CubeClRuntimeConfig::get(),
            }
        })
    }

    fn with_defaults(mut config: CubeClRuntimeConfig, written: &Written) -> CubeClRuntimeConfig {
        if written.memory.persistent_memory.is_none() {
            config.memory.persistent_memory = PERSISTENT_MEMORY;
        }
        if written.autotune.level.is_none() {
            config.autotune.level = AUTOTUNE_LEVEL;
        }
        config
    }

    /// Which of the settings made here the user wrote down, read from the files that cubecl reads.
    #[derive(Clone, Default, Deserialize, Serialize)]
    #[serde(default)]
    struct Written {
        memory: WrittenMemory,
        autotune: WrittenAutotune,
    }

    #[derive(Clone, Default, Deserialize, Serialize)]
    #[serde(default)]
    struct WrittenMemory {
        persistent_memory: Option<Ignored>,
    }

    #[derive(Clone, Default, Deserialize, Serialize)]
    #[serde(default)]
    struct WrittenAutotune {
        level: Option<Ignored>,
    }

    /// A value of any kind.
    #[derive(Clone, Serialize)]
    struct Ignored;

    impl<'de> Deserialize<'de> for Ignored {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            IgnoredAny::deserialize(deserializer).map(|_| Self)
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
            if std::env::var_os("CUBECL_AUTOTUNE_LEVEL").is_some() {
                self.autotune.level = Some(Ignored);
            }
            self
        }
    }

    #[cfg(test)]
    #[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
    mod tests {
        use super::*;

        /// What becomes of a user's file.
        fn configured(file: &str) -> CubeClRuntimeConfig {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("cubecl.toml");
            std::fs::write(&path, file).unwrap();
            with_defaults(
                CubeClRuntimeConfig::from_file_path(&path).unwrap(),
                &Written::from_file_path(&path).unwrap(),
            )
        }

        #[test]
        fn a_users_settings_stay_and_the_others_are_made() {
            let config = configured("[memory]\npersistent_memory = 'enabled'");
            assert!(matches!(
                config.memory.persistent_memory,
                PersistentMemory::Enabled
            ));
            assert!(matches!(config.autotune.level, AutotuneLevel::Full));

            let config =
                configured("[autotune]\nlevel = 'balanced'\n[memory.cuda]\nallocator = 'async'");
            assert!(matches!(
                config.memory.persistent_memory,
                PersistentMemory::Enforced
            ));
            assert!(matches!(config.autotune.level, AutotuneLevel::Balanced));
        }
    }
}
