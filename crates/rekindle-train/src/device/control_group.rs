//! Memory limits of the process by control groups (cgroups, version 1 and 2).
//!
//! In a container, its own group is at the mount point of the file system. A service or a scheduler's job runs in a
//! nested group, and the limits of all parent groups also apply. Above `memory.high` the system slows a process down so
//! much that it counts as a limit, too. Cached file pages count as free, because the system reclaims them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Names of a version's files, and the key of cached files in `memory.stat`.
struct Files {
    limits: &'static [&'static str],
    in_use: &'static str,
    cached: [&'static str; 2],
}

const FIRST: Files = Files {
    limits: &["memory.limit_in_bytes"],
    in_use: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
};

const SECOND: Files = Files {
    limits: &["memory.max", "memory.high"],
    in_use: "memory.current",
    cached: ["inactive_file", "active_file"],
};

/// The lowest limit of any group of this process, and the lowest remaining memory of any, in bytes; `None` if there is
/// no limit.
pub(super) fn limit() -> Option<(u64, u64)> {
    let of_process = |name: &str| fs::read_to_string(Path::new("/proc/self").join(name)).ok();
    limit_in(&of_process("cgroup")?, &of_process("mountinfo")?)
}

fn limit_in(groups: &str, mounts: &str) -> Option<(u64, u64)> {
    let trees = mounts.lines().filter_map(|mount| tree(mount, groups));
    let limits = trees.flat_map(|(files, top, own)| {
        let groups: Vec<PathBuf> = own.ancestors().map(Path::to_path_buf).collect();
        let within = groups
            .into_iter()
            .filter(move |group| group.starts_with(&top));
        within.filter_map(|group| limit_of(files, &group))
    });
    limits.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)))
}

/// The mount point of memory-limiting groups in a line of `mountinfo`, and the folder of the process's own group.
fn tree(mount: &str, groups: &str) -> Option<(&'static Files, PathBuf, PathBuf)> {
    let (about, kind) = mount.split_once(" - ")?;
    let mut about = about.split(' ').skip(3);
    let (root, top) = (about.next()?, Path::new(about.next()?));
    let mut kind = kind.split(' ');
    let (files, controller) = match (kind.next()?, kind.nth(1)?) {
        ("cgroup2", _) => (&SECOND, ""),
        ("cgroup", options) if options.split(',').any(|option| option == "memory") => {
            (&FIRST, "memory")
        }
        _ => return None,
    };
    // Such as `4:memory:/jobs/7`, and `0::/jobs/7` of the second version.
    let own = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers
            .split(',')
            .any(|one| one == controller)
            .then_some(path)
    })?;
    // A group outside of the mounted tree is not visible; use the top group then.
    let below = Path::new(own).strip_prefix(root).unwrap_or(Path::new(""));
    Some((files, top.to_path_buf(), top.join(below)))
}

/// A group's limit and its remaining memory.
fn limit_of(files: &Files, group: &Path) -> Option<(u64, u64)> {
    let text = |name: &str| fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse().ok();
    let limits = files.limits.iter().filter_map(|name| number(name));
    let limit: u64 = limits.min()?;
    let stat = text("memory.stat").unwrap_or_default();
    let cached = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        files
            .cached
            .contains(&name)
            .then(|| bytes.parse::<u64>().ok())?
    });
    let cached: u64 = cached.sum();
    let in_use: u64 = number(files.in_use).unwrap_or(0);
    Some((limit, limit.saturating_sub(in_use.saturating_sub(cached))))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Groups one inside the other, `/`, `/jobs` and `/jobs/7`, each with these files.
    fn nested(levels: [&[(&str, String)]; 3]) -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        for (group, files) in ["", "jobs", "jobs/7"].iter().zip(levels) {
            let group = top.path().join(group);
            fs::create_dir_all(&group).unwrap();
            for (name, text) in files {
                fs::write(group.join(name), text).unwrap();
            }
        }
        top
    }

    fn bytes(mebibytes: u64) -> String {
        format!("{}\n", mebibytes * MIB)
    }

    #[test]
    fn all_groups_of_the_second_version_bind() {
        let stat = format!(
            "anon 5\ninactive_file {}\nactive_file {}\n",
            60 * MIB,
            40 * MIB
        );
        let top = nested([
            &[],
            &[
                ("memory.max", bytes(1000)),
                ("memory.high", bytes(800)),
                ("memory.current", bytes(700)),
                ("memory.stat", stat),
            ],
            &[
                ("memory.max", bytes(900)),
                ("memory.high", "max\n".into()),
                ("memory.current", bytes(300)),
            ],
        ]);
        let mounts = |root: &str, group: &str| {
            let mounted = top.path().join(group);
            format!(
                "22 1 8:1 / / rw - ext4 /dev/sda rw\n30 23 0:26 {root} {} rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
                mounted.display()
            )
        };
        // Of the job's group 600 are left, of the one above 800 - (700 - 100).
        let both = Some((800 * MIB, 200 * MIB));
        assert_eq!(limit_in("0::/jobs/7\n", &mounts("/", "")), both);
        assert_eq!(limit_in("0::/\n", &mounts("/", "")), None);
        // In a container groups are mounted from its own one down, and it may be called by its whole path, or `/`.
        assert_eq!(limit_in("0::/jobs/7\n", &mounts("/jobs", "jobs")), both);
        assert_eq!(limit_in("0::/7\n", &mounts("/", "jobs")), both);
        let own = Some((900 * MIB, 600 * MIB));
        assert_eq!(limit_in("0::/\n", &mounts("/", "jobs/7")), own);
        assert_eq!(limit_in("0::/../8\n", &mounts("/jobs/7", "jobs/7")), own);
    }

    #[test]
    fn all_groups_of_the_first_version_bind() {
        let unlimited = || "9223372036854771712\n".to_owned();
        let stat = format!("inactive_file 7\ntotal_inactive_file {}\n", 10 * MIB);
        let top = nested([
            &[("memory.limit_in_bytes", unlimited())],
            &[
                ("memory.limit_in_bytes", bytes(500)),
                ("memory.usage_in_bytes", bytes(100)),
                ("memory.stat", stat),
            ],
            &[("memory.limit_in_bytes", unlimited())],
        ]);
        let mounts = format!(
            "35 31 0:32 / {} rw,relatime - cgroup cgroup rw,memory\n40 31 0:37 / /elsewhere rw - cgroup cgroup rw,cpu\n",
            top.path().display()
        );
        let groups = "9:name=systemd:/\n4:cpu,memory:/jobs/7\n0::/\n";
        assert_eq!(limit_in(groups, &mounts), Some((500 * MIB, 410 * MIB)));
    }
}
