//! Memory limits of the process by control groups (cgroups, version 1 and 2).
//!
//! A service or a scheduler's job runs in a nested group, and the limits of all parent groups also apply. A container may
//! see its own group alone, as the top of the tree. Above `memory.high` the system slows a process down so much that it
//! counts as a limit, too. Cached file pages count as free, because the system reclaims them.

use std::{fs, path::Path};

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
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    limit_in(&groups, Path::new("/sys/fs/cgroup"))
}

fn limit_in(groups: &str, mounted: &Path) -> Option<(u64, u64)> {
    let limits = groups.lines().flat_map(|group| limits_of(group, mounted));
    limits.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)))
}

/// The limits of a group, such as `4:memory:/jobs/7`, or `0::/jobs/7` of the second version, and of all around it.
fn limits_of(group: &str, mounted: &Path) -> Vec<(u64, u64)> {
    let mut parts = group.splitn(3, ':').skip(1);
    let controllers = parts.next().unwrap_or_default();
    let (files, top) = match controllers {
        "" => (&SECOND, mounted.to_path_buf()),
        _ if controllers.split(',').any(|one| one == "memory") => (&FIRST, mounted.join("memory")),
        _ => return Vec::new(),
    };
    let path = parts.next().unwrap_or_default();
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    // Where the top is a group further down, the path still starts at the machine's.
    let mut below = (0..names.len()).map(|first| top.join(names[first..].join("/")));
    let own = below.find(|group| group.is_dir());
    let own = own.unwrap_or_else(|| top.clone());
    let groups = own.ancestors().take_while(|group| group.starts_with(&top));
    groups.filter_map(|group| limit_of(files, group)).collect()
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
    fn nested(top: &Path, levels: [&[(&str, String)]; 3]) {
        for (group, files) in ["", "jobs", "jobs/7"].iter().zip(levels) {
            let group = top.join(group);
            fs::create_dir_all(&group).unwrap();
            for (name, text) in files {
                fs::write(group.join(name), text).unwrap();
            }
        }
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
        let top = tempfile::tempdir().unwrap();
        let levels: [&[(&str, String)]; 3] = [
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
        ];
        nested(top.path(), levels);
        let limit = |group: &str, mounted: &str| limit_in(group, &top.path().join(mounted));
        // Of the job's group 600 are left, of the one above 800 - (700 - 100).
        let both = Some((800 * MIB, 200 * MIB));
        assert_eq!(limit("0::/jobs/7\n", ""), both);
        assert_eq!(limit("0::/\n", ""), None);
        // In a container groups are mounted from its own one down, and it may be called by its whole path, or `/`.
        assert_eq!(limit("0::/jobs/7\n", "jobs"), both);
        assert_eq!(limit("0::/7\n", "jobs"), both);
        let own = Some((900 * MIB, 600 * MIB));
        assert_eq!(limit("0::/\n", "jobs/7"), own);
        assert_eq!(limit("0::/../8\n", "jobs/7"), own);
    }

    #[test]
    fn all_groups_of_the_first_version_bind() {
        let unlimited = || "9223372036854771712\n".to_owned();
        let stat = format!("inactive_file 7\ntotal_inactive_file {}\n", 10 * MIB);
        let top = tempfile::tempdir().unwrap();
        let levels: [&[(&str, String)]; 3] = [
            &[("memory.limit_in_bytes", unlimited())],
            &[
                ("memory.limit_in_bytes", bytes(500)),
                ("memory.usage_in_bytes", bytes(100)),
                ("memory.stat", stat),
            ],
            &[("memory.limit_in_bytes", unlimited())],
        ];
        nested(&top.path().join("memory"), levels);
        let groups = "9:name=systemd:/\n4:cpu,memory:/jobs/7\n0::/\n";
        let limit = limit_in(groups, top.path());
        assert_eq!(limit, Some((500 * MIB, 410 * MIB)));
    }
}
