//! What outlives a loss of power: a file that is renamed into place is on the disk before, and its folder after, by the
//! system calls that the program makes.

use std::{fs, io, path::Path, process::Command};

use crate::support::folder;

const CONFIG: &str = concat!(
    include_str!("../../configs/parity/mlp.toml"),
    "\n[run]\nsnapshot_every = 1\n"
);

/// A system call about the content or the names of files.
#[derive(Debug, PartialEq)]
enum Call {
    Write(String),
    Sync(String),
    Rename(String, String),
    Folder(String),
}

impl Call {
    /// That of a line such as `17 fsync(4</tmp/run/run.json>) = 0`.
    fn of(line: &str) -> Option<Self> {
        let (_, call) = line.split_once(' ')?;
        let (name, arguments) = call.trim_start().split_once('(')?;
        let file = || Some(arguments.split_once('<')?.1.split_once('>')?.0.to_owned());
        match name {
            "write" | "writev" | "pwrite64" => file().map(Self::Write),
            "fsync" | "fdatasync" => file().map(Self::Sync),
            "rename" | "renameat" | "renameat2" => {
                let mut paths = arguments.split('"').skip(1).step_by(2).map(str::to_owned);
                Some(Self::Rename(paths.next()?, paths.next()?))
            }
            "mkdir" => Some(Self::Folder(arguments.split('"').nth(1)?.to_owned())),
            _ => None,
        }
    }
}

/// Such calls of a training in `folder`, in order; `None` where it cannot be traced.
fn traced(folder: &Path) -> Option<Vec<Call>> {
    const CALLS: &str =
        "trace=write,writev,pwrite64,fsync,fdatasync,rename,renameat,renameat2,mkdir";
    let traced = Command::new("strace")
        .args(["-f", "-y", "-e", CALLS, "-o", "calls.txt"])
        .arg(assert_cmd::cargo::cargo_bin("rekindle"))
        .args(["train", "run.toml", "--device", "cpu", "-o"])
        .arg(folder.join("new/run"))
        .env("REKINDLE_CACHE", "")
        .current_dir(folder)
        .output();
    let calls = fs::read_to_string(folder.join("calls.txt")).unwrap_or_default();
    let calls: Vec<Call> = calls.lines().filter_map(Call::of).collect();
    match traced {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        // Some containers forbid it.
        Ok(output) if calls.is_empty() && !output.status.success() => None,
        traced => {
            let output = traced.expect("started");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            Some(calls)
        }
    }
}

#[test]
fn a_file_is_on_the_disk_before_it_takes_its_place() {
    let folder = folder(CONFIG);
    let top = folder.path().canonicalize().expect("a path");
    let Some(calls) = traced(&top) else {
        println!("skipped: there is no `strace`, or it may not trace");
        return;
    };
    for folder in ["new", "new/run"].map(|name| top.join(name)) {
        let text = |path: &Path| path.to_str().expect("text").to_owned();
        let made = Call::Folder(text(&folder));
        let made = calls.iter().rposition(|call| *call == made);
        let made = made.expect("a new folder");
        let above = Call::Sync(text(folder.parent().expect("a folder")));
        assert!(calls[made..].contains(&above), "{folder:?} may be lost");
    }
    let mut placed = Vec::new();
    for (at, call) in calls.iter().enumerate() {
        let Call::Rename(from, to) = call else {
            continue;
        };
        if !Path::new(to).starts_with(&top) {
            continue;
        }
        let (before, after) = (&calls[..at], &calls[at + 1..]);
        let written = Call::Write(from.clone());
        let written = before.iter().rposition(|call| *call == written);
        let written = written.unwrap_or_else(|| panic!("{to} is not written"));
        let synced = before[written..].contains(&Call::Sync(from.clone()));
        assert!(synced, "{to} is renamed before it is on the disk");
        let (folder, name) = to.rsplit_once('/').expect("a path");
        let next = |call: &Call| matches!(call, Call::Rename(..));
        let until = after.iter().position(next).unwrap_or(after.len());
        let kept = after[..until].contains(&Call::Sync(folder.to_owned()));
        assert!(kept, "the name of {to} is not on the disk");
        placed.push(name);
    }
    for name in ["run.json", "config.toml", "weights.safetensors"] {
        assert!(placed.contains(&name), "{name}: {placed:?}");
    }
    let snapshots = placed.iter().filter(|name| name.starts_with("snapshot-"));
    assert!(snapshots.count() >= 2, "{placed:?}");
}
