//! The settings that result from what a user wrote, and kernels that are kept.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::thread;

use cubecl_environment::persistence::Origin;

use super::*;

/// The settings that result from a user's file when kernels are kept in `/kept`.
fn configured(file: &str, kept: bool) -> CubeClRuntimeConfig {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cubecl.toml");
    fs::write(&path, file).unwrap();
    with_defaults(
        CubeClRuntimeConfig::from_file_path(&path).unwrap(),
        &Written::from_file_path(&path).unwrap(),
        kept.then(|| CacheConfig::Directory("/kept".into())),
    )
}

#[test]
fn a_users_settings_stay_and_the_others_are_made() {
    let file = "version = 1\n[memory]\npersistent_memory = 'enabled'";
    let config = configured(file, false);
    let memory = config.memory.persistent_memory;
    assert!(matches!(memory, PersistentMemory::Enabled));
    assert!(matches!(config.autotune.level, AutotuneLevel::Full));

    let file = "[autotune]\nlevel = 'balanced'\n[memory.cuda]\nallocator = 'async'";
    let config = configured(file, false);
    let memory = config.memory.persistent_memory;
    assert!(matches!(memory, PersistentMemory::Enforced));
    assert!(matches!(config.autotune.level, AutotuneLevel::Balanced));
}

#[test]
fn kernels_are_kept_where_somebody_says_so() {
    let caches =
        |config: &CubeClRuntimeConfig| (config.compilation.cache, !config.autotune.disable_cache);
    assert_eq!(caches(&configured("", false)), (false, false));
    let config = configured("", true);
    assert_eq!(caches(&config), (true, true));
    assert_eq!(config.environment.path.root().to_str(), Some("/kept"));
    assert_eq!(config.environment.name, DATABASE);

    // The user turned caching off, or chose another place.
    let file = "[compilation]\ncache = false\n[autotune]\ndisable_cache = true";
    let config = configured(file, true);
    assert_eq!(caches(&config), (false, false));
    let file = "[compilation]\ncache = true\n[environment]\nname = 'mine'";
    let config = configured(file, true);
    assert_eq!(caches(&config), (true, true));
    assert_eq!(config.environment.name, "mine");
    assert_ne!(config.environment.path.root().to_str(), Some("/kept"));
}

/// Threads of one process read the database while others open it, as a device's threads do, after a process that was killed.
#[test]
fn kernels_are_read_while_others_open_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kernels.db");
    let open = || Database::open_at(&path, Access::ReadWrite).unwrap();
    let keys: Vec<[u8; 2]> = (0..200_u16).map(u16::to_le_bytes).collect();
    let kernels = open();
    for key in &keys {
        kernels.insert("kernels", key, &[7; 5000], Origin::Local);
    }
    drop(kernels);
    fs::remove_file(folder.path().join("kernels.db-tshm")).unwrap();

    rebuild_shared(&path);
    let first = open();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let kernels = open();
                for key in keys.iter().cycle().take(4000) {
                    assert_eq!(kernels.get("kernels", key).unwrap().len(), 5000);
                }
            });
        }
        for _ in 0..100 {
            assert!(open().get("kernels", &keys[0]).is_some());
        }
    });
    drop(first);
}
